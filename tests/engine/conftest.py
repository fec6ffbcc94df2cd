"""What the folder's tests share: other code in the place of the app's, and resident workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text, update
from sqlalchemy.exc import OperationalError

from flask_cronjobs import CronJobs
from flask_cronjobs.core import resident as resident_module
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.core.resident import serve
from flask_cronjobs.core.tick import TickOptions
from flask_cronjobs.core.worker.keeper import Keeper
from flask_cronjobs.models import JobDefinition, JobRun
from tests.process.support import PATIENCE, wait_until
from tests.rows import now


class Code:
    """The code of an app, which a deploy replaces, and what it has in the tables."""

    def __init__(self, app: Flask, db: SQLAlchemy) -> None:
        self._app, self._db = app, db

    def __call__(self, *names: str, **options: Any) -> CronJobs:
        """Let the code declare a task with a definition by each of these names, or by ``it``."""
        code = CronJobs()
        for name in names or ("it",):
            code.task(name=name, **{"schedule": "@yearly", **options})(lambda: None)
        old: State = self._app.extensions["cronjobs"]
        self._app.extensions["cronjobs"] = replace(old, registry=code._registry)
        return code

    def definition(self, name: str = "it") -> JobDefinition:
        """A definition as its row stands."""
        self._db.session.rollback()
        named = select(JobDefinition).where(JobDefinition.name == name)
        return self._db.session.scalars(named).one()

    def set(self, *names: str, **values: Any) -> None:
        """Change definitions by hand: those of these names, or all."""
        which = JobDefinition.name.in_(names) if names else JobDefinition.id > 0
        self._db.session.execute(update(JobDefinition).where(which).values(values))
        self._db.session.commit()

    def sql(self, statement: str) -> None:
        """Execute a statement, and commit."""
        self._db.session.execute(text(statement))
        self._db.session.commit()

    def next_is_ahead(self, *names: str) -> bool:
        """Whether the next slots of definitions are still to come."""
        slots = [self.definition(name).next_run_at for name in names or ("it",)]
        return all(at is not None and at > now() for at in slots)

    def runs(self, name: str = "%") -> list[JobRun]:
        """The runs of a task, or all, by their slots."""
        self._db.session.rollback()
        named = select(JobRun).where(JobRun.job_type.like(name))
        return list(self._db.session.scalars(named.order_by(JobRun.scheduled_for)))

    def ran(self, name: str = "%") -> list[datetime]:
        """The slots that have run."""
        return [run.scheduled_for for run in self.runs(name) if run.status == "succeeded"]

    def skipped(self, name: str = "%") -> list[tuple[str | None, Any]]:
        """The kind of each skipped row, and how many slots it stands for."""
        rows: Iterable[Any] = (run for run in self.runs(name) if run.status == "skipped")
        return [(run.error_type, run.result["skipped"]) for run in rows]

    def hourly(self) -> str:
        """A schedule of which no slot comes due by itself while a test runs."""
        return f"{(now() + timedelta(minutes=30)).minute} * * * *"


def lose_answer(
    db: SQLAlchemy,
    part: str,
    times: Collection[int] = (1,),
    when: str = "after_cursor_execute",
) -> list[str]:
    """Break the connection at some of the statements with *part*; all of those that were sent.

    :param times: at the first, the second, and so on.
    """
    seen: list[str] = []

    def lose(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if part in statement:
            seen.append(statement)
            if len(seen) in times:
                # SQLAlchemy 2.0 does not wrap what a listener raises before the statement.
                lost = psycopg.OperationalError("server closed the connection unexpectedly")
                raise OperationalError(statement, None, lost)

    event.listen(db.engine, when, lose)
    return seen


@pytest.fixture
def code(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> Code:
    """The code of the app."""
    return Code(app, db)


def keepers() -> list[Keeper]:
    """The keepers of the workers in this process."""
    return [each for each in threading.enumerate() if isinstance(each, Keeper)]


def stop_keepers() -> None:
    """Let all workers in this process stop."""
    for keeper in keepers():
        keeper.stop()


class Resident:
    """``flask jobs work`` in a thread.

    :ivar error: what it ended with.
    """

    def __init__(self, state: State, queues: tuple[str, ...] = ()) -> None:
        self.error: BaseException | None = None
        options = TickOptions(workers=1, queues=queues)
        self._thread = threading.Thread(target=self._run, args=(state, options))
        self._thread.start()

    def _run(self, state: State, options: TickOptions) -> None:
        try:
            serve(state, options)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Stop it, and wait for its end."""

        def has_ended() -> bool:
            stop_keepers()  # Again and again: one that has just been started has no keeper yet.
            return not self._thread.is_alive()

        wait_until(has_ended)

    def join(self) -> None:
        """Wait for its end."""
        wait_until(lambda: not self._thread.is_alive())


@pytest.fixture
def resident(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Resident]]:
    """Starts resident workers, which end with the test, and with their last minute."""
    monkeypatch.setattr(resident_module, "END_WITHIN", PATIENCE)
    started: list[Resident] = []

    def start(queues: tuple[str, ...] = ()) -> Resident:
        started.append(Resident(state_of(app), queues))
        return started[-1]

    yield start
    for each in started:
        each.stop()
