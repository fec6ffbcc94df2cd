"""Times, and a builder of rows for tests of what reads them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, delete, select
from sqlalchemy.orm import Session

from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.reader import reading
from flask_cronjobs.insights.run_detail import RunView, find_run
from flask_cronjobs.insights.run_filters import RunFilter, matching
from flask_cronjobs.models import (
    JobDefinition,
    JobEffect,
    JobFailure,
    JobOperation,
    JobRate,
    JobRun,
    JobStep,
    JobTick,
)

TERMINAL = ("succeeded", "dead", "cancelled", "skipped")


def new_year() -> datetime:
    """Return the last slot of ``@yearly``."""
    return datetime(now().year, 1, 1, tzinfo=timezone.utc)


def now() -> datetime:
    """Return the current time, aware."""
    return datetime.now(timezone.utc)


def ago(seconds: float = 0.0, **parts: float) -> datetime:
    """Return the time *seconds*, or *parts* as in a `timedelta`, before now."""
    return now() - timedelta(seconds=seconds, **parts)


def the_run(db: SQLAlchemy) -> JobRun:
    """Return the only run, as it is now."""
    db.session.rollback()
    return db.session.scalars(select(JobRun)).one()


def runs(db: SQLAlchemy) -> list[JobRun]:
    """Return the committed runs by id, as they are now."""
    db.session.rollback()
    return list(db.session.scalars(select(JobRun).order_by(JobRun.id)))


def statuses(db: SQLAlchemy) -> list[str]:
    """Return the status of each run by id, as it is now."""
    return [run.status for run in runs(db)]


def view_of(state: State, run_id: int) -> RunView:
    """Return a run as its page shows it."""
    view = find_run(state, run_id)
    assert view is not None
    return view


def all_of(state: State, which: RunFilter) -> list[int]:
    """Return the ids of all runs that a filter finds, newest first, as a bulk action gets them."""
    with reading(state) as reader:
        return matching(state, which, 10_000, reader.connection)


class Rows:
    """Makes rows in one database, each committed at once.

    :cvar task: the task of runs that name no other.
    """

    task = "send"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, status: str = "queued", age: float = 0.0, **values: Any) -> int:
        """Insert a run of *status* that was due, or ended, *age* seconds ago; return its id."""
        base: dict[str, Any] = {
            "job_type": self.task,
            "status": status,
            "run_at": ago(age),
            "scheduled_for": ago(age),
            "payload": {},
        }
        if status in TERMINAL:
            base |= {"finished_at": ago(age), "started_at": ago(age + 2), "attempts": 1}
        if status == "running":
            base |= {
                "locked_by": "web-1:7:token",
                "locked_until": ago(-60),
                "started_at": ago(age),
                "attempts": 1,
            }
        if status == "failed":
            base |= {"attempts": 1}
        return self.insert(JobRun(**(base | values)))

    def definition(self, name: str, **values: Any) -> int:
        """Insert a definition; return its id."""
        base = {"job_type": name, "schedule": "*/5 * * * *", "payload": {}, "next_run_at": ago(-60)}
        return self.insert(JobDefinition(**(base | values | {"name": name})))

    def failure(self, run_id: int, attempt: int, **values: Any) -> int:
        """Insert a failed attempt of a run; return its id."""
        base = {
            "worker": "web-1:7:token",
            "error_type": "ValueError",
            "error": "boom",
            "stack": "Traceback: boom",
            "started_at": ago(10),
            "failed_at": ago(7),
        }
        return self.insert(JobFailure(**(base | values | {"run_id": run_id, "attempt": attempt})))

    def tick(self, age: float = 0.0, **values: Any) -> int:
        """Insert a tick that was last seen *age* seconds ago; return its id."""
        base = {
            "worker": "web-1:7",
            "host": "web-1",
            "pid": 7,
            "started_at": ago(age + 1),
            "seen_at": ago(age),
            "finished_at": ago(age),
        }
        return self.insert(JobTick(**(base | values)))

    def effect(self, key: str, **values: Any) -> int:
        """Insert an effect; return its id."""
        return self.insert(JobEffect(**({"state": "begun"} | values | {"key": key})))

    def step(self, run_id: int, name: str, kind: str = "step", **values: Any) -> int:
        """Insert a step of a run that ended 7 seconds ago; return its id."""
        base = {
            "kind": kind,
            "attempt": 1,
            "worker": "web-1:7:token",
            "started_at": ago(10),
            "finished_at": ago(7),
        }
        return self.insert(JobStep(**(base | values | {"run_id": run_id, "name": name})))

    def rate(self, key: str, tat: datetime, **values: Any) -> int:
        """Set when the next start of a rate key comes; return the row's id."""
        with self.engine.begin() as connection:
            connection.execute(delete(JobRate).where(JobRate.key == key))
        return self.insert(JobRate(**(values | {"key": key, "tat": tat})))

    def operation(self, what: str, run_id: int, actor: str = "ada") -> int:
        """Insert an operator's operation on a run; return its id."""
        base = {"what": what, "target": f"run {run_id}", "actor": actor, "run_id": run_id}
        return self.insert(JobOperation(**(base)))

    def get(self, run_id: int) -> JobRun:
        """Return a run as its row is now, detached from any session."""
        with Session(self.engine) as session:
            return session.get_one(JobRun, run_id)

    def insert(self, *rows: Any) -> int:
        """Commit rows; return the id of the last."""
        with Session(self.engine) as session:
            session.add_all(rows)
            session.commit()
            return int(rows[-1].id)
