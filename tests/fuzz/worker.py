"""A worker process of the fuzz: it ticks, and inspects itself after each interruption.

It prints one JSON object a line: what was interrupted, what is wrong, and ``done`` at its end.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain

from flask import Flask
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from flask_cronjobs import CronJobsError
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.core.tick import TickOptions, tick
from tests.fuzz.app import LEASE, STEPS, TASKS, TIMEOUTS, create_app, db, fuzz, jobs
from tests.fuzz.inspection import inspector, threads

#: How many victims are enqueued at a time.
CHUNK = 8
#: The causes of interruptions, each as often as its share.
HOWS = ("timeout", "timeout", "timeout", "timeout", "cancel", "interrupt")
#: How long everything may take to end, in seconds.
END_WITHIN = 4 * LEASE


def main() -> None:
    """Interrupt as often as the arguments say, and then let all runs end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--interruptions", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--queries", action="store_true")
    options = parser.parse_args()
    faulthandler.enable()
    fuzz.queries = options.queries
    if fuzz.queries:
        gc.disable()  # Without the collector, what a handler left behind stays, and is found.
    # Only a tick lets Ctrl-C through, so that it does not interrupt the fuzz's own code.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    app = create_app(options.url, options.folder)
    with app.app_context():
        worker = Worker(app, random.Random(f"{options.seed}:worker"))
        worker.enqueue(0)
        worker.work(options.interruptions)
    say(done=True)


def say(**facts: object) -> None:
    """Print one line for the driver."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Worker:
    """Enqueues victims, ticks, and searches for what they left behind. It needs an app context."""

    def __init__(self, app: Flask, choose: random.Random) -> None:
        self._app = app
        self._state = state_of(app)
        self._choose = choose
        self._inspector = inspector(app.config["SQLALCHEMY_DATABASE_URI"])
        self._sqlite = db.engine.dialect.name == "sqlite"
        self._trouble = 0
        fuzz.inspect = self._inspect
        fuzz.moments.cancel = self._cancel
        fuzz.moments.start()

    def work(self, interruptions: int) -> None:
        """Tick until there were so many interruptions; then let everything end."""
        received, last = 0, time.monotonic()
        while received < interruptions:
            if not self._live():
                self.enqueue(CHUNK)
            self._tick()
            if number := self._tell():
                received, last = received + number, time.monotonic()
            if time.monotonic() > last + END_WITHIN:
                sys.exit(f"Nothing more happens: {self._live()} runs are held by nobody at work.")
        fuzz.calm = True
        until = time.monotonic() + END_WITHIN
        while self._live():
            if time.monotonic() > until:
                say(wrong=f"{self._live()} runs do not come to their end")
                return
            self._tick()
            self._tell()
            time.sleep(0.1)  # The runs of a process that was killed wait for their lease to expire.

    def enqueue(self, victims: int) -> None:
        """Enqueue victims, and after each of them a run that inspects."""
        for _ in range(victims):
            choose = self._choose
            how = choose.choice(HOWS)
            kind = choose.choice(["session", "atomic"] if fuzz.queries else list(STEPS))
            if kind == "atomic" and how == "cancel" and self._sqlite:
                how = "timeout"  # It holds the only lock, so a cancel cannot be requested.
            name = TASKS[kind, choose.choice(TIMEOUTS) if how == "timeout" else None]
            jobs.enqueue(name, {"how": how, "after": choose.uniform(0, 0.06)})
            jobs.enqueue("inspect")
        db.session.commit()
        db.session.remove()

    def _tick(self) -> None:
        """Run a tick, by `jobs.tick()` or as the command does, and inspect what it leaves."""
        own_process = self._choose.random() < 0.5
        anywhere = self._choose.uniform(0, 0.1) if self._choose.random() < 0.25 else None
        if fuzz.queries:
            anywhere = None
        name = "flask jobs tick" if own_process else "jobs.tick()"
        began = time.monotonic()
        try:
            with self._interruptible(None if fuzz.calm else anywhere):
                tick(self._state, TickOptions(budget=2, own_process=own_process))
            self._trouble = 0
        except KeyboardInterrupt:
            fuzz.interrupted.append(("tick", name, "KeyboardInterrupt"))
        except CronJobsError as error:
            self._trouble += 1
            say(wrong=f"{name} failed after {time.monotonic() - began:.1f} s: {error}")
            if self._trouble > 3:
                raise
        fuzz.frames.check("the worker, after its tick")
        db.session.remove()
        db.engine.dispose()
        self._complain(chain(threads(), self._inspector.locks()), f"after {name}")
        if not fuzz.queries:
            self._complain(self._inspector.connections(), f"after {name}")

    @contextmanager
    def _interruptible(self, anywhere: float | None) -> Iterator[None]:
        fuzz.moments.begin_tick(anywhere)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            fuzz.moments.end_tick()
            if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                say(wrong=f"the tick has left its own handler of SIGINT, {self._last()}")
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _inspect(self, when: str) -> None:
        fuzz.frames.check(when)
        self._complain(self._inspector.locks(), f"in {when}")

    def _complain(self, problems: Iterator[str], when: str) -> None:
        for wrong in problems:
            say(wrong=f"{wrong}, {when}, {self._last()}")

    def _last(self) -> str:
        return f"the last interruption was {fuzz.interrupted[-1:]}"

    def _tell(self) -> int:
        """Report the interruptions since the last time; return how many there were."""
        events, fuzz.interrupted = fuzz.interrupted, []
        for kind, how, error in events:
            say(interrupted=kind, how=how, error=error)
        for wrong in fuzz.frames.kept:
            say(wrong=wrong)
        for unheard in fuzz.unheard:
            say(unheard=unheard)
        fuzz.frames.kept, fuzz.unheard = [], []
        return len(events)

    def _live(self) -> int:
        sql = "SELECT count(*) FROM job_runs WHERE status IN ('queued', 'failed', 'running')"
        live: int = db.session.execute(text(sql)).scalar_one()
        db.session.remove()
        return live

    def _cancel(self, run_id: int) -> None:
        # The handler may hold SQLite's only lock, or have ended: then it cannot be cancelled.
        with self._app.app_context(), suppress(CronJobsError, SQLAlchemyError):
            jobs.cancel(run_id)


if __name__ == "__main__":
    main()
