"""The messages about a database that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from flask_cronjobs import DatabaseTrouble
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.errors import name_of
from tests.marks import on_postgresql


def test_a_database_is_named_without_its_password() -> None:
    engine = create_engine("postgresql+psycopg://ada:hush@db/shop?password=hush&sslmode=require")
    name = name_of(engine)
    assert name.startswith("postgresql+psycopg://***@db/shop?")
    assert "hush" not in name


@pytest.mark.parametrize(
    ("file", "mode"), [("none/shop.sqlite", "rwc"), ("shop.sqlite", "ro")], ids=["lost", "readonly"]
)
def test_an_sqlite_file_that_cannot_be_written_is_named(
    tmp_path: Path, file: str, mode: str
) -> None:
    (tmp_path / "shop.sqlite").touch()
    engine = create_engine(f"sqlite:///file:{tmp_path / file}?mode={mode}&uri=true")
    with Bookkeeping(engine, patience=0.1) as books, pytest.raises(DatabaseTrouble) as caught:
        books.rows(text("CREATE TABLE t (a INTEGER)"))
    message = str(caught.value)
    assert str(tmp_path / file) in message
    assert "may the user" in message
    assert message.count("\n") == 0


@on_postgresql
@pytest.mark.parametrize(
    "engine_options",
    [{"connect_args": {"options": "-c default_transaction_read_only=on"}}],
    indirect=True,
)
def test_a_connection_that_may_only_read_is_reported_with_what_to_do(engine: Engine) -> None:
    with Bookkeeping(engine, patience=0.1) as books, pytest.raises(DatabaseTrouble) as caught:
        books.rows(text("CREATE TABLE t (a INTEGER)"))
    message = str(caught.value)
    assert "in a read-only transaction. Connect to the primary" in message
    assert message.endswith("do not set default_transaction_read_only.")
