"""A process pool hears of each death in it: of its workers, and workers of their parent's."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.marks import on_sqlite
from tests.process.support import Site, run_patched, wait_until

pytestmark = pytest.mark.slow


def alive(pid: int) -> bool:
    """Return whether a process is there and has not ended."""
    with suppress(FileNotFoundError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


@on_sqlite
class TestWorkersWhoseHandlersForked:
    """Such a process holds the worker's pipe open, whatever becomes of the worker."""

    def test_they_are_replaced_when_they_die(self, site: Site) -> None:
        gate = site.folder / "gate"
        site.enqueue_many("leave_a_process_and_die", [{"path": str(gate)}] * 2)
        process = site.start("jobs", "work", "--workers", "2")
        wait_until(lambda: process.errors.count("ended before its time") == 2)
        note = site.enqueue("note")
        site.wait_for_status(note, "succeeded")
        process.send(signal.SIGTERM)
        assert process.wait().returncode == 0

    def test_a_tick_ends_though_the_processes_stay(self, site: Site) -> None:
        site.config["CRONJOBS_LEASE"] = 300
        gate = site.folder / "gate"
        site.enqueue_many("leave_a_process_and_die", [{"path": str(gate)}] * 2)
        notes = site.enqueue_many("note", [{}] * 10)
        done = site.run_tick("--workers", "3")
        assert (done.returncode, done.stderr.count("ended before its time")) == (0, 2)
        assert {site.run(run).status for run in notes} == {"succeeded"}
        assert done.stdout.count("succeeded  note") == 10


class TestParentThatIsKilled:
    @pytest.mark.parametrize("command", ["work", "tick"])
    def test_its_workers_stop_in_order(self, site: Site, command: str) -> None:
        site.config["CRONJOBS_LEASE"] = 300
        runs = site.enqueue_many("sleep", [{"seconds": 300}] * 2)
        process = site.start("jobs", command, "--workers", "2")
        pids = {line["pid"] for line in site.wait_for("begun", 2)}
        process.send(signal.SIGKILL)
        wait_until(lambda: not any(map(alive, pids)), timeout=20)
        assert [line["by"] for line in site.trace("interrupted")] == ["ShuttingDown"] * 2
        rows = [site.run(run) for run in runs]
        assert {(row.status, row.attempts, row.locked_by) for row in rows} == {("queued", 0, None)}
        assert process.errors.count("has ended, so this worker stops") == 2

    @on_sqlite
    def test_a_worker_that_was_just_forked_stops_too(self, site: Site) -> None:
        done = run_patched(
            site,
            """
            import os, signal
            fork, begun = os.fork, os.getpid()
            def fork_and_die():
                pid = fork()
                if pid:
                    os.kill(begun, signal.SIGKILL)
                while os.getppid() == begun:
                    pass
                return pid
            os.fork = fork_and_die
            """,
            "jobs", "work", "--workers", "2",
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL
        # Its output was read to the end, so the worker has ended as well.
        assert done.stderr.count("has ended, so this worker stops") == 1


@on_sqlite
class TestForkThatFails:
    def test_workers_that_were_forked_are_stopped_and_waited_for(self, site: Site) -> None:
        site.config["CRONJOBS_LEASE"] = 300
        runs = site.enqueue_many("sleep", [{"seconds": 300}] * 2)
        trace = str(site.trace_file)
        done = run_patched(
            site,
            f"""
            import errno, os, time
            fork, pids = os.fork, []
            def fork_some():
                while pids and "begun" not in open({trace!r}).read():
                    time.sleep(0.02)
                if pids:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                pids.append(fork())
                return pids[0]
            os.fork = fork_some
            """,
            "jobs", "tick", "--workers", "3",
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(
            "Error: Of 3 workers, only 1 could be started, so they were stopped: Resource "
        )
        (begun,) = site.trace("begun")
        assert not alive(begun["pid"])
        rows = [site.run(run) for run in runs]
        assert {(row.status, row.attempts, row.locked_by) for row in rows} == {("queued", 0, None)}

    def test_a_worker_that_cannot_be_replaced_is_tried_again(self, site: Site) -> None:
        site.enqueue("kill_self", {"attempts": 1})
        done = run_patched(
            site,
            """
            import errno, os, signal
            from flask_cronjobs.engine import processes
            fork, number = os.fork, 0
            def fork_most():
                global number
                number += 1
                if number in (3, 4):
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                pid = fork()
                if pid and number == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
                return pid
            os.fork, processes.RESTART_PAUSE = fork_most, 0.01
            """,
            "jobs", "work", "--workers", "2",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("could not be replaced, and is tried again") == 2
