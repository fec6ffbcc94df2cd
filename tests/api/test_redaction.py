"""Errors of real databases, and messages of handlers, are stored without secrets.

`tests.text.test_redaction` tests the texts themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from flask_cronjobs import current_run
from flask_cronjobs.models import JobRun
from flask_cronjobs.text.redaction import error_text, stack_text
from tests.marks import on_both, on_sqlite

FAILING = {
    "unique": "INSERT INTO people VALUES (:a), (:a)",
    "integer": "SELECT CAST(CAST(:a AS text) AS integer)",
    "json": "SELECT CAST(CAST(:a AS text) AS json)",
    "array": "SELECT CAST(CAST(:a AS text) AS int[])",
    "time": "SELECT CAST(CAST(:a AS text) AS timestamptz)",
    "row": "INSERT INTO people VALUES (:a || NULL), (:a)",
}


@on_both
@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("case", FAILING)
def test_no_value_of_a_real_database_error_is_kept(db: SQLAlchemy, case: str) -> None:
    sqlite = db.engine.dialect.name == "sqlite"
    if sqlite and case not in ("unique", "row"):
        pytest.skip("SQLite casts anything")
    with db.engine.connect() as connection:
        connection.execute(text("CREATE TABLE people (token varchar NOT NULL UNIQUE)"))
        with pytest.raises(DBAPIError) as caught:
            connection.execute(text(FAILING[case]), {"a": "s3cret, s3)cret"})
    assert "cret" not in error_text(caught.value)
    assert "cret" not in stack_text(caught.value).replace('"s3cret, s3)cret"', "")
    assert "[SQL: " in error_text(caught.value)


@on_sqlite
def test_message_of_progress_hides_credentials_also_what_a_cut_divides(
    perform: Callable[..., JobRun],
) -> None:
    def handler(message: str) -> None:
        current_run.progress(0.5, message)

    def stored(message: str) -> str | None:
        return perform(lambda: handler(message), name=f"task {len(message)}").progress_message

    short = "at postgresql://me:s3cret@db/app, token=s3cret, 3 of 6"
    assert stored(short) == "at postgresql://***@db/app, token=***"
    cut = stored("x" * 480 + " postgresql://me:s3cret@db/app" + "y" * 10_000) or ""
    assert ("s3cret" in cut, len(cut)) == (False, 500)
