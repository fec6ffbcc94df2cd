"""Standard output that blocks, is closed or full: Ctrl-S, a pager, a collector that hangs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.marks import on_sqlite
from tests.process import jobs_app
from tests.process.support import PATIENCE, ROOT, Site, wait_until

pytestmark = on_sqlite

#: More lines than a pipe of 4096 bytes holds.
RUNS = 300
FLASK = [sys.executable, "-m", "flask", "--app", jobs_app.__name__]


@contextmanager
def unread(site: Site, *args: str, errors_too: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``flask`` with *args*; its output goes into a small pipe that nothing reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen(
        [*FLASK, *args],
        cwd=ROOT, env=site.environment, stdin=subprocess.DEVNULL,
        stdout=writer, stderr=writer if errors_too else subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(writer)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(reader)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_resident_workers_renew_and_record_and_stop(site: Site, workers: str) -> None:
    notes = site.enqueue_many("note", [{}] * RUNS)
    with unread(site, "jobs", "work", "--workers", workers) as process:
        wait_until(lambda: site.statuses() == {"succeeded": RUNS})
        run = site.enqueue("wait_for", {"path": str(site.gate)})
        site.wait_for("begun")
        first = site.run(run).locked_until
        wait_until(lambda: site.run(run).locked_until > first)
        site.gate.touch()
        site.wait_for_status(run, "succeeded")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert site.ends(*notes) == {("succeeded", 1)}
    rows = site.query("SELECT sum(succeeded) AS runs, sum(finished_at IS NULL) FROM job_ticks")
    assert tuple(rows[0])[1] == 0
    assert rows[0].runs >= RUNS + 1  # Slots may have come due.


@pytest.mark.parametrize("options", [("--workers", "1"), ("--workers", "3"), ("--json",)])
def test_a_tick_does_its_work_and_ends(site: Site, options: tuple[str, ...]) -> None:
    """On a terminal, Ctrl-S also stops standard error, where a lost worker is reported."""
    site.enqueue_many("note", [{}] * RUNS)
    killed = 2 if "3" in options else 0
    site.enqueue_many("kill_self", [{}] * killed, priority=1)
    with unread(site, "jobs", "tick", *options, errors_too=True) as process:
        assert process.wait(PATIENCE) == 0
    assert site.statuses() == {"succeeded": RUNS} | ({"running": killed} if killed else {})
    (row,) = site.query("SELECT succeeded, finished_at FROM job_ticks")
    assert (row.succeeded, row.finished_at is not None) == (RUNS, True)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_handler_that_prints_is_interrupted_and_the_process_ends(
    site: Site, workers: str
) -> None:
    ids = site.enqueue_many("print_much", [{}] * int(workers))
    with unread(site, "jobs", "tick", "--workers", workers) as process:
        assert process.wait(PATIENCE) == 0
    assert [site.failures(run) for run in ids] == [["TimedOut"]] * int(workers)


def run_in_shell(site: Site, command: str, redirect: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f"{' '.join(FLASK)} jobs {command} {redirect}"],
        cwd=ROOT, env=site.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "redirect"),
    [
        ("tick", ">&-"),
        ("tick", "2>&-"),
        *((command, ">&- 2>&-") for command in ("tick", "tick --json", "tick --workers 2")),
        ("admin", ">&-"),
    ],
)
def test_commands_do_their_work_though_a_stream_is_closed(
    site: Site, command: str, redirect: str
) -> None:
    run = site.enqueue("note")
    result = run_in_shell(site, command, redirect)
    assert (result.returncode, result.stderr) == (0, "")
    works = command.startswith("tick") and "dry" not in command
    assert site.run(run).status == ("succeeded" if works else "queued")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_output_to_a_full_disk_harms_no_run(site: Site, workers: str) -> None:
    ids = site.enqueue_many("note", [{}] * 20)
    run_in_shell(site, f"tick --workers {workers}", ">/dev/full")
    assert site.ends(*ids) == {("succeeded", 1)}
    assert len(site.trace("note")) == 20
    assert site.query("SELECT id FROM job_ticks WHERE finished_at IS NULL") == []
