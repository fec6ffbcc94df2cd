"""One host: its cron starts one tick after the other, until the file that stops it exists.

A host loads the app once, and forks a process for each tick, so that there are many ticks. A forked
process runs the real command `flask jobs tick`, or `flask jobs work` for a while. At times nothing
reads what it prints, or it is killed or frozen at one of the package's failpoints.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from flask.cli import ScriptInfo

from flask_cronjobs.db import failpoints
from tests.failpoints import POINTS
from tests.soak import timeline
from tests.soak.app import BROKER, BUDGET, LEASE, create_app
from tests.soak.history import Tick
from tests.soak.timeline import Fault

#: The exit code of a tick that did not end as a command should.
CRASHED = 70
#: The failpoints at which a tick may be frozen: between the claim and the start of the handler.
FREEZING = ("after-claim", "before-handler")
#: How much a pipe holds at least.
PIPE = 4096


def _sleep(seconds: float) -> None:
    """Sleep where the clock is faked.

    Python sleeps by clock_nanosleep. libfaketime treats this call as one on a faked clock even
    where it leaves the monotonic clock alone, and then it fails.
    """
    select.select([], [], [], seconds)


if "FAKETIME" in os.environ:
    time.sleep = _sleep  # type: ignore[assignment]


def main() -> None:
    """Run ticks until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--work", action="store_true", help="flask jobs work instead of ticks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", type=Path, required=True)
    parser.add_argument("--calm", type=Path, required=True, help="a file: no more faults")
    parser.add_argument("--ticks", type=Path, required=True)
    options = parser.parse_args()
    args = ["jobs", "tick", "--budget", f"{BUDGET:g}", f"--workers={options.workers}"]
    if options.work:
        args = ["jobs", "work", f"--workers={options.workers}"]
    if os.environ.get(BROKER):  # Like the app, it is loaded once for all ticks.
        import_module("kombu.transport.redis")
        import_module("flask_cronjobs.executors.celery")
    choose = random.Random(f"{options.seed}:host")
    readers: list[int] = []
    with options.ticks.open("a", buffering=1) as ticks:
        soak = os.getppid()
        while not options.stop.exists() and os.getppid() == soak:
            command = Command(args, choose, options.stop, options.calm, readers)
            print(json.dumps(asdict(command.run())), file=ticks)
            time.sleep(choose.uniform(0, 0.5))


class Command:
    """One tick, or one resident worker for a while, and the faults that are planned for it.

    :param readers: the pipes of earlier commands that are still to be read.
    """

    def __init__(
        self,
        args: list[str],
        choose: random.Random,
        stop: Path,
        calm: Path,
        readers: list[int],
    ) -> None:
        self._readers = readers
        self._asked: float | None = None
        self._args = args
        self._stop = stop
        self._calm = calm
        self._resident = "work" in args
        # As in a deploy, a resident worker is stopped after a while, and another one is started.
        self._life = choose.uniform(3, 15) if self._resident else float("inf")
        # Everything is drawn for each tick, so that a seed means the same whatever is used.
        blocked, armed = choose.random() < 0.15, choose.random() < 0.15
        blocked_for = choose.uniform(1, 4 * LEASE)
        point, count = choose.choice(POINTS), choose.randint(1, 4)
        freezes = choose.random() < 0.5
        self._blocked_for: float | None = None
        self._reach: Callable[[str], None] | None = None
        if calm.exists():
            return
        if blocked:
            self._blocked_for = blocked_for
        if armed:
            if freezes:
                at = choose.choice(FREEZING)
                self._reach = _signalling(at, count, signal.SIGSTOP, "freezes at failpoints")
            else:
                self._reach = _signalling(point, count, signal.SIGKILL, "kills at failpoints")

    def run(self) -> Tick:
        """Run it in a process of its own, and wait for its end."""
        reader, writer = self._pipe()
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._be_child(writer)
        if writer is not None:
            os.close(writer)
        status = self._wait(pid, began, reader)
        ended = time.monotonic()
        code = os.waitstatus_to_exitcode(status)
        return Tick(code, began, ended, pid, self._resident, self._asked)

    def _pipe(self) -> tuple[int | None, int | None]:
        """Return a full pipe if nothing is to read what is printed."""
        if self._blocked_for is None:
            return None, None
        reader, writer = os.pipe()
        with suppress(AttributeError, OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE)  # type: ignore[attr-defined,unused-ignore]
        os.set_blocking(writer, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"." * PIPE)
        os.set_blocking(writer, True)
        os.set_blocking(reader, False)
        return reader, writer

    def _wait(self, pid: int, began: float, reader: int | None) -> int:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            now = time.monotonic()
            over = now >= began + (self._blocked_for or 0) or self._calm.exists()
            if reader is not None and (ended or over):
                self._unblock(pid, began, reader)
                reader = None
            if ended:
                return status
            self._drain()
            over = now >= began + self._life or (self._resident and self._stop.exists())
            if over and self._asked is None:
                self._asked = now
                os.kill(pid, signal.SIGTERM)
            time.sleep(0.02)

    def _unblock(self, pid: int, began: float, reader: int) -> None:
        """From now on, read what is printed."""
        timeline.add(Fault("outputs blocked", began, time.monotonic(), pid, pid, delays=True))
        self._readers.append(reader)

    def _drain(self) -> None:
        """Read what has come; a worker that outlives its parent also prints."""
        for reader in list(self._readers):
            with suppress(BlockingIOError):
                while os.read(reader, 65536):
                    pass
                os.close(reader)
                self._readers.remove(reader)

    def _be_child(self, writer: int | None) -> NoReturn:
        code = CRASHED
        try:
            os.setpgid(0, 0)  # Its process group identifies the workers that it forks.
            os.environ["PGAPPNAME"] = str(os.getpid())  # It marks its connections.
            if writer is not None:
                os.dup2(writer, 1)
                os.close(writer)
            if self._reach is not None:
                failpoints.reach = self._reach  # type: ignore[assignment]
            app = create_app()
            app.cli.main(self._args, obj=ScriptInfo(create_app=lambda: app))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _signalling(at: str, count: int, number: signal.Signals, what: str) -> Callable[[str], None]:
    """Return a `failpoints.reach` that signals its own process at the *count*-th time."""
    remaining = count

    def reach(point: str) -> None:
        nonlocal remaining
        if point == at:
            remaining -= 1
            if remaining == 0:
                timeline.note(what, pid=os.getpid(), group=os.getpgrp(), note=point)
                os.kill(os.getpid(), number)

    return reach


if __name__ == "__main__":
    main()
