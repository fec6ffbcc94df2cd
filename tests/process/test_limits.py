"""``flask jobs work --max-…``: a worker that has reached a limit ends, and a fresh one follows."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter

import pytest

from flask_cronjobs.engine.worker.options import Limits, most_held
from tests.marks import on_sqlite
from tests.process.support import Site, Tick, wait_until

#: A worker of the test's app holds less, in MB, and one that has called `hold` more.
MEMORY = 400


def end(process: Tick) -> None:
    process.send(signal.SIGTERM)
    assert process.wait().returncode == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_no_worker_takes_more_runs_than_it_may(site: Site, workers: str) -> None:
    process = site.start("jobs", "work", "--workers", workers, "--max-runs", "3")
    ids = site.enqueue_many("note", [{}] * 12)
    pids = Counter(line["pid"] for line in site.wait_for("note", 12))
    assert max(pids.values()) == 3
    wait_until(lambda: site.statuses() == {"succeeded": 12})
    assert {site.run(run).attempts for run in ids} == {1}
    wait_until(
        lambda: (
            len(re.findall(r"Z replaced   worker \S+:\d+  after 3 runs$", process.output, re.M))
            >= 3
        )
    )
    end(process)
    assert process.errors == ""


@on_sqlite
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("option", "limit", "why"),
    [("--max-memory", str(MEMORY), r"after it held \d+ MB"), ("--max-age", "1s", "after 1s")],
)
def test_a_worker_ends_after_its_run_and_another_goes_on(
    site: Site, option: str, limit: str, why: str, workers: str
) -> None:
    process = site.start("jobs", "work", "--workers", workers, option, limit)
    first = site.enqueue("hold", {"megabytes": MEMORY, "seconds": 4})  # Longer than any grace.
    (begun,) = site.wait_for("begun")
    (ended,) = site.wait_for("ended")
    assert (begun["pid"], site.trace("interrupted")) == (ended["pid"], [])
    site.wait_for_status(first, "succeeded")
    wait_until(
        lambda: re.search(f"replaced   worker \\S+:{begun['pid']}  {why}$", process.output, re.M)
    )
    last = site.enqueue("note")
    site.wait_for_status(last, "succeeded")
    assert site.trace("note")[0]["pid"] != begun["pid"]
    assert (site.run(first).attempts, site.run(last).attempts) == (1, 1)
    end(process)


@on_sqlite
def test_it_stops_with_the_process_that_it_is_to_stop_with(site: Site) -> None:
    done = site.start("jobs", "work", "--parent", str(os.getppid())).wait()
    assert done.returncode == 0
    assert f"The parent process {os.getppid()} has ended, so the workers stop" in done.stderr
    process = site.start("jobs", "work", "--parent", str(os.getpid()))
    site.wait_for_status(site.enqueue("note"), "succeeded")
    process.send(signal.SIGUSR1)
    process.send(signal.SIGUSR1)
    assert (process.wait().returncode, process.errors) == (0, "")


@on_sqlite
def test_an_age_of_nothing_is_refused(site: Site) -> None:
    done = site.start("jobs", "work", "--max-age", "0s").wait()
    assert (done.returncode, "Give an age of 1s or more." in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("limits", "runs", "age", "reached"),
    [
        (Limits(), 9, 9.0, None),
        (Limits(runs=3), 2, 9.0, None),
        (Limits(runs=3), 3, 0.0, "after 3 runs"),
        (Limits(age=3600), 9, 3599.0, None),
        (Limits(age=3600), 0, 3600.0, "after 1h"),
        (Limits(memory=10**6), 9, 9.0, None),
        (Limits(memory=1), 0, 9.0, None),  # It is to do something before it ends.
    ],
)
def test_limits(limits: Limits, runs: int, age: float, reached: str | None) -> None:
    assert limits.reached(runs, age) == reached


def test_memory_is_measured_in_megabytes() -> None:
    before = most_held()
    held = b"x" * (64 << 20)
    assert 10 < before < most_held() < 10_000
    assert Limits(memory=1).reached(1, 0.0) == f"after it held {most_held():.0f} MB"
    del held
