"""``flask jobs work``: it works like ticks, and stays until a signal or a limit ends it."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.marks import on_sqlite
from tests.process.support import Site, wait_until

#: In MB: a worker of the test's app holds less, and one that has called `hold` holds more.
MEMORY = 400


@pytest.mark.parametrize("workers", [1, 2])
def test_resident_workers_take_up_what_comes_and_stop_gracefully(site: Site, workers: int) -> None:
    site.config |= {"CRONJOBS_SHUTDOWN_GRACE": 60, "CRONJOBS_LEASE": 60}
    site.tick_here()  # This makes the definitions, so that they can be due.
    site.query(f"UPDATE job_definitions SET next_run_at = '{site.past}'")
    ours = "SELECT * FROM job_ticks WHERE finished_at IS NULL"

    process = site.start("jobs", "work", "--workers", str(workers))
    slots = {line["name"] for line in site.wait_for("slot", 5)}
    assert slots == {f"scheduled-{number}" for number in range(5)}
    wait_until(lambda: len(site.query(ours)) == 1)  # One row a minute, however many workers.
    waiting = site.enqueue("note")
    site.wait_for_status(waiting, "succeeded")

    at_work = site.enqueue_many("wait_for", [{"path": str(site.gate)}] * workers)
    lines = site.wait_for("begun", workers)
    assert len({line["pid"] for line in lines}) == workers
    process.send(signal.SIGTERM)
    site.gate.touch()
    result = process.wait()
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("skipped    on_schedule  ") >= 5
    assert site.ends(*at_work) == {("succeeded", 1)}
    assert f"succeeded  note  run {waiting}" in result.stdout
    assert site.ends(site.enqueue("note")) == {("queued", 0)}


@on_sqlite
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_worker_ends_after_its_run_and_another_goes_on(site: Site, workers: str) -> None:
    process = site.start("jobs", "work", "--workers", workers, "--max-memory", str(MEMORY))
    first = site.enqueue("hold", {"megabytes": MEMORY, "seconds": 4})  # Longer than any grace.
    (line,) = site.wait_for("begun")
    (ended,) = site.wait_for("ended")
    assert line["pid"] == ended["pid"]
    site.wait_for_status(first, "succeeded")
    replaced = re.compile(
        f"replaced   worker \\S+:{line['pid']}  after it held \\d+ MB$", re.MULTILINE
    )
    wait_until(lambda: replaced.search(process.output))
    last = site.enqueue("note")
    site.wait_for_status(last, "succeeded")
    assert site.trace("note")[0]["pid"] != line["pid"]
    assert site.ends(first, last) == {("succeeded", 1)}
    process.stop()


@on_sqlite
def test_it_stops_with_the_process_that_it_is_to_stop_with(site: Site) -> None:
    result = site.start("jobs", "work", "--parent", str(os.getppid())).wait()
    assert result.returncode == 0
    assert f"The parent process {os.getppid()} has ended, so the workers stop" in result.stderr
    process = site.start("jobs", "work", "--parent", str(os.getpid()))
    site.wait_for_status(site.enqueue("note"), "succeeded")
    for _ in range(2):
        process.send(signal.SIGUSR1)
    assert (process.wait().returncode, process.errors) == (0, "")
