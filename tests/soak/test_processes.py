"""The soak finds its processes, also those whose parent was killed, and lets go what it holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.soak import timeline
from tests.soak.databases import Hold
from tests.soak.nemesis import Holds
from tests.soak.processes import Process, Processes, Watcher
from tests.soak.timeline import Fault

# A host with a tick, which has a worker; each says who it is.
HOST = """
import os, time
if os.fork() == 0:
    os.setpgid(0, 0)
    os.fork()
time.sleep(60)
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """The processes of one host."""
    environment = {**os.environ, "TEST_SOAK": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", HOST], env=environment) as host:
        processes = Processes([host.pid], f"TEST_SOAK={tmp_path}")
        try:
            yield processes
        finally:
            for process in processes.living():
                os.kill(process.pid, signal.SIGKILL)
            host.kill()


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Fault]]:
    """What is in the timeline."""
    monkeypatch.setenv(timeline.TIMELINE, str(tmp_path / "timeline"))
    (tmp_path / "timeline").touch()
    return lambda: timeline.read(tmp_path / "timeline")


def tick_and_worker(processes: Processes) -> tuple[Process, Process]:
    until = time.monotonic() + 20
    while len(living := processes.living()) < 2 or len({each.group for each in living}) > 1:
        assert time.monotonic() < until
        time.sleep(0.01)
    (tick,) = (process for process in living if process.parent in processes.hosts)
    (worker,) = (process for process in living if process.parent == tick.pid)
    return tick, worker


def test_orphan_is_found_and_measured_while_it_is_awake(processes: Processes) -> None:
    tick, worker = tick_and_worker(processes)
    assert processes.orphans(processes.living()) == []
    stopped = threading.Event()
    watcher = Watcher(processes, lambda process: stopped.set())
    watcher.start()
    os.kill(tick.pid, signal.SIGKILL)
    while watcher.awake.get(worker.pid, 0) < 0.2:
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGSTOP)
    assert stopped.wait(20)
    asleep = watcher.awake[worker.pid]
    time.sleep(0.5)
    assert watcher.awake[worker.pid] == asleep
    watcher.stop()
    assert [process.pid for process in watcher.left(within=0)] == [worker.pid]
    assert watcher.left(within=20) == []


def test_hold_ends_by_itself_and_is_written_down(faults: Callable[[], list[Fault]]) -> None:
    ended = threading.Event()
    holds = Holds()
    holds.add(Hold(Fault("freezes", 1, 0, 7), 0.01, ended.set), key=7)
    assert ended.wait(20)
    while 7 in holds:
        time.sleep(0.001)
    (fault,) = faults()
    assert (fault.what, fault.at, fault.pid) == ("freezes", 1, 7)
    assert fault.until > fault.at


def test_holds_end_once_and_at_once_when_all_is_to_end(faults: Callable[[], list[Fault]]) -> None:
    ended: list[int] = []
    holds = Holds()
    for _ in range(2):
        holds.add(Hold(Fault("freezes", 1, 0, 7), 600, lambda: ended.append(7)), key=7)
    holds.end_all()
    holds.end_all()
    assert ended == [7]
    assert len(faults()) == 1
