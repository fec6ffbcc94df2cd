"""The job tables of one database, with short methods for what tests do again and again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial
from types import ModuleType
from typing import Any

import psycopg
from blinker import ANY, Signal
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, Row, create_engine, event, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from flask_cronjobs.core import claim, definitions, look, slots
from flask_cronjobs.core.claim import Answer, ClaimRequest
from flask_cronjobs.core.definitions import DefinitionRow
from flask_cronjobs.core.tasks.registry import DefinitionSpec
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.create import create_tables, set_wal
from flask_cronjobs.db.dialect import dialect_of
from flask_cronjobs.features.once import once_effects
from flask_cronjobs.insights.operations import Operation
from flask_cronjobs.insights.run_actions import Action, Change, change_runs
from flask_cronjobs.models import JobDefinition, JobEffect, JobFailure, JobRun
from flask_cronjobs.schedule.catchup import Slot, SlotPlan
from flask_cronjobs.types import Claim, Outcome, OutcomeKind
from tests.rows import Rows, ago
from tests.tables import copy_tables

TASKS = ("task",)
_numbers = itertools.count(1)


class Bound:
    """The functions of a module, called with a bookkeeping connection as the first argument."""

    def __init__(self, module: ModuleType, books: Bookkeeping) -> None:
        self._module, self._books = module, books

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._module, name), self._books)


class Kit(Rows):
    """One bookkeeping connection, everything that writes through it, and a builder of rows."""

    task = "task"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.books = Bookkeeping(engine, patience=20)
        self.claims = Bound(claim, self.books)
        self.looks = Bound(look, self.books)
        self.definitions = Bound(definitions, self.books)
        self.slots = Bound(slots, self.books)
        self.effects = Bound(once_effects, self.books)

    @classmethod
    def on(cls, url: str) -> Kit:
        """Create the job tables in an empty database, and return a kit on them."""
        # The timeout lets enqueuers on a busy machine get SQLite's lock, which is granted in no
        # order.
        patience = {"timeout": 60} if url.startswith("sqlite") else {}
        engine = create_engine(url, connect_args=patience)
        if copy_tables(url):
            set_wal(engine)
        else:
            create_tables(engine)
        return cls(engine)

    def act(self, action: Action, *ids: int) -> list[Change]:
        """Let an operator apply *action* to those of the runs *ids* that allow it."""
        return change_runs(self.books, action, ids, Operation("changed", "runs", "ada"))

    def another(self) -> Kit:
        """Return a second worker, which has its own connection to the same database."""
        return Kit(self.engine)

    def close(self) -> None:
        """Close the connection and the engine."""
        self.books.close()
        self.engine.dispose()

    def sql(self, statement: str, **parameters: object) -> Sequence[Row[Any]]:
        """Execute a statement, commit, and return its rows."""
        dialect = dialect_of(self.engine)
        values = {
            name: dialect.instant(value) if isinstance(value, datetime) else value
            for name, value in parameters.items()
        }
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return result.all() if result.returns_rows else []

    # Runs

    def run(self, status: str = "queued", age: float = 60.0, **values: Any) -> int:
        """Insert a run that is due unless *values* say otherwise; return its id."""
        return super().run(status, age, **values)

    def runs(self, number: int, **values: Any) -> list[int]:
        """Insert *number* runs; return their ids."""
        return [self.run(**values) for _ in range(number)]

    def all_rows(self) -> list[JobRun]:
        """Return all runs, by id."""
        with Session(self.engine) as session:
            return list(session.scalars(select(JobRun).order_by(JobRun.id)))

    def old_effect(self, key: str, **values: Any) -> None:
        """Insert an effect that was done long ago, outside of a run unless *values* name one."""
        effect = {"key": key, "state": "done", "done_at": ago(days=200), **values}
        with Session(self.engine) as session:
            session.add(JobEffect(**effect))
            session.commit()

    def failures(self, run_id: int) -> list[JobFailure]:
        """Return the failed attempts of a run, in order."""
        statement = select(JobFailure).where(JobFailure.run_id == run_id)
        with Session(self.engine) as session:
            return list(session.scalars(statement.order_by(JobFailure.attempt)))

    def request(self, limit: int = 100, **values: Any) -> ClaimRequest:
        """Return a claim request with a token of its own."""
        fields = {"token": f"host:1:{next(_numbers)}", "tasks": TASKS, **values}
        return ClaimRequest(limit=limit, **fields)

    def claim(self, limit: int = 100, **values: Any) -> tuple[Claim, ...]:
        """Claim runs with a request of these values."""
        answer: Answer = self.claims.record_and_claim([], self.request(limit, **values))
        return answer.claims

    def claim_ids(self, limit: int = 100, **values: Any) -> list[int]:
        """Claim as `claim` does, and return the ids."""
        return [claim.id for claim in self.claim(limit, **values)]

    def claim_one(self, **values: Any) -> Claim:
        """Claim the only claimable run."""
        (claim,) = self.claim(**values)
        return claim

    def finish(self, claim: Claim, kind: OutcomeKind = "succeeded", **values: Any) -> bool:
        """Record an outcome; return whether its token still held the run."""
        result = outcome(claim, kind, **values)
        return claim.id in self.claims.record_and_claim([result], None).recorded

    def expire(self, claim: Claim, seconds: float = 1) -> None:
        """Let the lease of a run have expired *seconds* ago."""
        with self.engine.begin() as connection:
            connection.execute(
                update(JobRun)
                .where(JobRun.id == claim.id)
                .values(locked_until=ago(seconds=seconds))
            )

    # Definitions

    def define(self, name: str = "definition", due: datetime | None = None, **values: Any) -> int:
        """Insert a definition whose next slot is *due*; return its id."""
        usual: dict[str, Any] = {"job_type": self.task, "schedule": "* * * * *"}
        return self.definition(name, next_run_at=due or ago(minutes=1), **(usual | values))

    def defined(self, definition_id: int) -> JobDefinition:
        """Return a definition as its row is now."""
        with Session(self.engine) as session:
            return session.get_one(JobDefinition, definition_id)

    def find(self, name: str) -> DefinitionRow:
        """Return a definition as `definitions.find` reads it."""
        row: DefinitionRow | None = self.definitions.find(name)
        assert row is not None
        return row


def begin_with_the_write_lock(kit: Kit) -> None:
    """Let writers on SQLite begin with the write lock, as apps that write at once should."""
    if kit.engine.dialect.name != "sqlite":
        return

    @event.listens_for(kit.engine, "connect")
    def autocommit(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(kit.engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    kit.engine.dispose()


def in_threads(*works: Callable[[], None]) -> None:
    """Run all *works* at once; raise the first error."""
    with ThreadPoolExecutor(len(works)) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result()


def statements(engine: Engine, part: str = "") -> list[str]:
    """Collect the statements containing *part* that are sent from now on."""
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if part in statement:
            sent.append(" ".join(statement.split()))

    return sent


def lose_answer(
    db: SQLAlchemy | Kit,
    part: str,
    times: Collection[int] = (1,),
    when: str = "after_cursor_execute",
) -> list[str]:
    """Break the connection at some of the statements containing *part*; collect all of them.

    :param times: which of these statements, counted from 1.
    """
    sent: list[str] = []

    def lose(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if part in statement:
            sent.append(statement)
            if len(sent) in times:
                # SQLAlchemy 2.0 does not wrap errors that a listener raises before the statement.
                error = psycopg.OperationalError("server closed the connection unexpectedly")
                raise OperationalError(statement, None, error)

    event.listen(db.engine, when, lose)
    return sent


@contextmanager
def received(*signals: Signal, sender: Any = ANY) -> Generator[list[Any]]:
    """Collect what receivers of these signals get in this block, in order."""
    values: list[Any] = []

    def receive(sender: object, **details: Any) -> None:
        values.extend(details.values())

    with ExitStack() as stack:
        for signal in signals:
            stack.enter_context(signal.connected_to(receive, sender))
        yield values


def outcome(claim: Claim, kind: OutcomeKind, **values: Any) -> Outcome:
    """Return an outcome of *claim*."""
    if kind in ("failed", "dead"):
        values = {"error": "it broke", "error_type": "RuntimeError", "stack": "…", **values}
    return Outcome(claim.id, claim.token, kind, claim.attempt, claim.job_type, **values)


def spec(name: str = "definition", **values: Any) -> DefinitionSpec:
    """Return a definition as code declares it."""
    fields: dict[str, Any] = {
        "job_type": "task", "schedule": "* * * * *", "timezone": "UTC", "payload": {}, **values,
    }  # fmt: skip
    return DefinitionSpec(name=name, **fields)


def plan(expected: datetime, *slots: Slot, following: datetime | None = None) -> SlotPlan:
    """Return a plan from the watermark *expected*, by default with one slot there."""
    return SlotPlan(expected, following or expected + timedelta(days=1), slots or (Slot(expected),))
