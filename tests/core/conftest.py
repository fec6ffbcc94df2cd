"""The code of an app that a deploy replaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text, update

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.models import JobDefinition, JobRun
from tests.rows import now


class Code:
    """The code of an app, which a deploy replaces, and its rows in the tables."""

    def __init__(self, app: Flask, db: SQLAlchemy) -> None:
        self._app, self._db = app, db

    def __call__(self, *names: str, **options: Any) -> CronJobs:
        """Let the code declare a task with definitions of these names, or of the name ``it``."""
        code = CronJobs()
        for name in names or ("it",):
            code.task(name=name, **{"schedule": "@yearly", **options})(lambda: None)
        old: State = self._app.extensions["cronjobs"]
        self._app.extensions["cronjobs"] = replace(old, registry=code._registry)
        return code

    def definition(self, name: str = "it") -> JobDefinition:
        """Return a definition as its row is now."""
        self._db.session.rollback()
        named = select(JobDefinition).where(JobDefinition.name == name)
        return self._db.session.scalars(named).one()

    def set(self, *names: str, **values: Any) -> None:
        """Change the definitions of these names, or all, by hand."""
        condition = JobDefinition.name.in_(names) if names else JobDefinition.id > 0
        self._db.session.execute(update(JobDefinition).where(condition).values(values))
        self._db.session.commit()

    def sql(self, statement: str) -> None:
        """Execute a statement, and commit."""
        self._db.session.execute(text(statement))
        self._db.session.commit()

    def next_is_ahead(self, *names: str) -> bool:
        """Return whether the next slots of definitions are still to come."""
        slots = [self.definition(name).next_run_at for name in names or ("it",)]
        return all(at is not None and at > now() for at in slots)

    def runs(self, name: str = "%") -> list[JobRun]:
        """Return the runs of a task, or all runs, by their slots."""
        self._db.session.rollback()
        named = select(JobRun).where(JobRun.job_type.like(name))
        return list(self._db.session.scalars(named.order_by(JobRun.scheduled_for)))

    def ran(self, name: str = "%") -> list[datetime]:
        """Return the slots whose runs have succeeded."""
        return [run.scheduled_for for run in self.runs(name) if run.status == "succeeded"]

    def skipped(self, name: str = "%") -> list[tuple[str | None, Any]]:
        """Return the kind of each skipped row, and how many slots it covers."""
        rows: Iterable[Any] = (run for run in self.runs(name) if run.status == "skipped")
        return [(run.error_type, run.result["skipped"]) for run in rows]

    def hourly(self) -> str:
        """A schedule that has no slot while a test runs."""
        return f"{(now() + timedelta(minutes=30)).minute} * * * *"


@pytest.fixture
def code(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> Code:
    """The code of the app."""
    return Code(app, db)
