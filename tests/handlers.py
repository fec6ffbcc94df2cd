"""Handlers for tests, and short queries of how their runs ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text

from flask_cronjobs import Retry
from flask_cronjobs.models import JobRun

#: Allows two attempts, the second one immediately.
AGAIN = Retry(max_attempts=2, base=0, jitter=False)
#: Allows two attempts, of which a tick makes only the first.
LATER = Retry(max_attempts=2, base=600)

Enqueue = Callable[..., list[int]]
both_kinds = pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])


def of_kind(is_async: bool, func: Callable[..., Any]) -> Callable[..., Any]:
    """Return *func*, or an async function that calls it."""

    @wraps(func)
    async def later(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return func(*args, **kwargs)

    return later if is_async else func


def raising(error: BaseException) -> Callable[[], None]:
    """Return a handler that raises *error*."""

    def handler() -> None:
        raise error

    return handler


def read_runs(db: SQLAlchemy, *columns: Any) -> list[tuple[Any, ...]]:
    """Return *columns* of all runs by id, as they are now."""
    db.session.rollback()
    return [tuple(row) for row in db.session.execute(select(*columns).order_by(JobRun.id))]


def ends(db: SQLAlchemy) -> list[tuple[Any, ...]]:
    """Return the status and the last error's type of each run, by id."""
    return read_runs(db, JobRun.status, JobRun.error_type)


#: The status, attempts and holder of a run that was given back.
GIVEN_BACK = ("queued", 0, None)


def holders(db: SQLAlchemy) -> list[tuple[Any, ...]]:
    """Return the status, attempts and holder of each run, by id."""
    return read_runs(db, JobRun.status, JobRun.attempts, JobRun.locked_by)


def write(db: SQLAlchemy, label: str) -> None:
    """Insert *label* into the app's own table `work`."""
    db.session.execute(text("INSERT INTO work VALUES (:label)"), {"label": label})


def labels(db: SQLAlchemy) -> list[str]:
    """Return the labels in the table `work`."""
    db.session.rollback()
    return list(db.session.scalars(text("SELECT label FROM work ORDER BY label")))
