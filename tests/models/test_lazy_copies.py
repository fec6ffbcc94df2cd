"""The copies in the app's metadata appear when they are first read, in any way."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import JSON, Column, Integer, MetaData, Table, inspect
from sqlalchemy.dialects.postgresql import JSONB

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun, copies
from flask_cronjobs.models.copies import add_tables
from tests.kit import in_threads

NAMES = frozenset(JobRun.metadata.tables)

WAYS: dict[str, Callable[[MetaData], object]] = {
    "in": lambda metadata: "job_runs" in metadata,
    "in tables": lambda metadata: "job_ticks" in metadata.tables,
    "[]": lambda metadata: metadata.tables["job_runs"],
    "get": lambda metadata: metadata.tables.get("job_failures"),
    "iter": lambda metadata: set(metadata.tables) >= NAMES,
    "len": lambda metadata: len(metadata.tables) == len(NAMES) + 1,
    "keys": lambda metadata: metadata.tables.keys() >= NAMES,
    "values": lambda metadata: {table.name for table in metadata.tables.values()} >= NAMES,
    "items": lambda metadata: dict(metadata.tables.items()).keys() >= NAMES,
    "dict": lambda metadata: dict(metadata.tables).keys() >= NAMES,
    "**": lambda metadata: {**metadata.tables}.keys() >= NAMES,
    "==": lambda metadata: metadata.tables == {**metadata.tables},
    "repr": lambda metadata: "job_effects" in repr(metadata.tables),
    "sorted_tables": lambda metadata: {table.name for table in metadata.sorted_tables} >= NAMES,
}


def with_own_table() -> MetaData:
    """An app's metadata with a table of the app's own, which nothing has read yet."""
    metadata = MetaData()
    add_tables(metadata, "sqlite")
    Table("users", metadata, Column("id", Integer, primary_key=True))
    return metadata


def copied(metadata: MetaData) -> bool:
    """Return whether the copies exist, without reading them."""
    return dict.__contains__(metadata.tables, "job_runs")


@pytest.mark.parametrize("way", WAYS)
def test_looking_for_a_table_copies_all(way: str) -> None:
    metadata = with_own_table()
    assert not copied(metadata)
    assert WAYS[way](metadata) is not False
    assert copied(metadata)
    assert set(metadata.tables) == {*NAMES, "users"}


def test_foreign_key_of_the_app_s_own_finds_the_runs(app: Flask, db: SQLAlchemy) -> None:
    CronJobs(app)

    class Export(db.Model):  # type: ignore[name-defined,misc]
        id = db.Column(db.Integer, primary_key=True)
        run_id = db.Column(db.ForeignKey("job_runs.id"))

    with app.app_context():
        db.create_all()
        (key,) = inspect(db.engine).get_foreign_keys("export")
        assert key["referred_table"] == "job_runs"
        db.drop_all()


def test_app_of_another_dialect_gets_types_of_its_own() -> None:
    metadata = MetaData()
    add_tables(metadata, "sqlite")
    assert type(metadata.tables["job_runs"].c.payload.type) is JSON
    add_tables(metadata, "postgresql")
    assert type(metadata.tables["job_runs"].c.payload.type) is JSONB


def test_threads_that_look_at_once_find_them_all() -> None:
    metadata = with_own_table()
    together = threading.Barrier(8)
    complete: list[bool] = []

    def look() -> None:
        together.wait()
        complete.append({name for name in NAMES if name in metadata.tables} >= NAMES)

    in_threads(*[look] * 8)
    assert complete == [True] * 8


def test_copy_that_failed_is_made_at_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = with_own_table()
    with monkeypatch.context() as patch:
        patch.setattr(copies, "_make_plain", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            len(metadata.tables)
    assert set(metadata.tables) >= NAMES
