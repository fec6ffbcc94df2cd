"""An interruption within a commit, when SQLAlchemy considers the transaction ended."""

from __future__ import annotations

from typing import NoReturn

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Connection, event, text

from flask_cronjobs.core.app_state import State
from tests.rows import Rows


class Interruption(BaseException):
    """The exception of a signal handler."""


def interrupt(connection: Connection) -> NoReturn:
    raise Interruption


def test_interrupted_commit_leaves_neither_lock_nor_work_in_the_pool(
    app: Flask, db: SQLAlchemy, rows: Rows, state: State
) -> None:
    run = rows.run("queued", queue="first")
    change = text("UPDATE job_runs SET queue = :queue WHERE id = :id")
    with app.app_context():
        event.listen(db.engine, "commit", interrupt)
        db.session.execute(change, {"queue": "interrupted", "id": run})
        with pytest.raises(Interruption):
            db.session.commit()
        event.remove(db.engine, "commit", interrupt)
    with state.bookkeeping() as books, books.trying_once():  # This is another connection.
        books.rows(text("UPDATE job_runs SET priority = 7"))
    with app.app_context():  # The pool has one connection, so it is the same.
        row = db.session.execute(text("SELECT queue, priority FROM job_runs")).one()
        db.session.commit()
    assert tuple(row) == ("first", 7)
