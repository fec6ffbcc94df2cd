"""The tables refuse impossible rows, everything has a name, and times are instants."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import CheckConstraint, Column, Engine, Integer, MetaData, Table, inspect, text
from sqlalchemy.exc import IntegrityError, StatementError
from sqlalchemy.orm import Session

from flask_cronjobs import CronJobs
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.models import JobBatch, JobDefinition, JobEffect, JobFailure, JobRun
from flask_cronjobs.models.copies import add_tables, copy_tables
from flask_cronjobs.models.records import Base
from tests.marks import on_postgresql

NAMES = {
    *("job_definitions", "job_runs", "job_failures", "job_outputs", "job_effects", "job_pauses"),
    *("job_ticks", "job_batches", "job_operations", "job_steps", "job_rates"),
}
NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=timezone.utc)
LOCK: dict[str, Any] = {"locked_by": "host:1:token", "locked_until": NOW}


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """The engine of a database with the job tables."""
    create_tables(engine)
    return engine


def insert(engine: Engine, row: Base) -> None:
    with Session(engine) as session:
        session.add(row)
        session.commit()


KEY: dict[str, Any] = {"concurrency_key": "key", "concurrency_limit": 1}
ORDER: dict[str, Any] = {**KEY, "strict": True, "gate": "order"}
KINDS: dict[str, tuple[type[Base], dict[str, Any]]] = {
    "runs": (JobRun, {"job_type": "a"}),
    "definitions": (JobDefinition, {"name": "a", "job_type": "a", "schedule": "* * * * *"}),
    "effects": (JobEffect, {"key": "a"}),
    "batches": (JobBatch, {"key": "a"}),
}
#: A CHECK, and a row that it refuses.
IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("ck_job_runs_status", {"status": "lost"}),
    ("ck_job_runs_running_is_locked", {"status": "running"}),
    ("ck_job_runs_running_is_locked", {"status": "running", "locked_until": NOW}),
    ("ck_job_runs_running_is_locked", {"status": "running", "locked_by": "x"}),
    ("ck_job_runs_running_is_locked", {"status": "queued", **LOCK}),
    ("ck_job_runs_running_is_locked", {"status": "succeeded", "finished_at": NOW, **LOCK}),
    ("ck_job_runs_terminal_is_finished", {"status": "succeeded"}),
    ("ck_job_runs_terminal_is_finished", {"status": "dead"}),
    ("ck_job_runs_terminal_is_finished", {"finished_at": NOW}),
    ("ck_job_runs_terminal_is_finished", {"status": "failed", "finished_at": NOW}),
    ("ck_job_runs_attempts", {"attempts": 3, "max_attempts": 2}),
    ("ck_job_runs_attempts", {"attempts": -1}),
    ("ck_job_runs_attempts", {"max_attempts": 0}),
    ("ck_job_runs_concurrency_share", {**KEY, "concurrency_share": 1}),
    ("ck_job_runs_concurrency_share", {"status": "running", **KEY, **LOCK}),
    ("ck_job_runs_concurrency_limit", {"concurrency_key": "key"}),
    ("ck_job_runs_concurrency_limit", {"concurrency_limit": 1}),
    ("ck_job_runs_concurrency_limit", {"strict": True}),
    ("ck_job_definitions_catchup", {"catchup": "some"}),
    ("ck_job_definitions_overlap", {"overlap": "maybe"}),
    ("ck_job_definitions_origin", {"origin": "thin air"}),
    ("ck_job_definitions_max_attempts", {"max_attempts": 0}),
    ("ck_job_definitions_concurrency_limit", {"concurrency_key": "key"}),
    ("ck_job_effects_state", {"state": "maybe"}),
    ("ck_job_effects_done", {"state": "done"}),
    ("ck_job_effects_done", {"done_at": NOW}),
    ("ck_job_batches_finished", {"finished_at": NOW, "total": 1}),
    ("ck_job_batches_total", {"closed_at": NOW, "total": 1}),
    ("ck_job_runs_gate", {**ORDER, "gate": "door"}),
    ("ck_job_runs_gate", {**ORDER, "status": "succeeded", "finished_at": NOW}),
    ("ck_job_runs_gate", {**ORDER, "strict": False}),
    ("ck_job_runs_gate", {"gate": "rate"}),
    ("ck_job_runs_gate", {"gate": "rate", "rate_key": "key", "status": "running", **LOCK}),
]


def test_impossible_row_is_refused(engine: Engine) -> None:
    for constraint, values in IMPOSSIBLE:
        kind, columns = KINDS[constraint.split("_")[2]]
        with pytest.raises(IntegrityError, match=constraint):
            insert(engine, kind(**columns, **values))


def test_run_is_no_wider_than_it_was() -> None:
    """Each INSERT pays for each CHECK and index. The bounds may only be lowered."""
    table = Base.metadata.tables["job_runs"]
    checks = [check for check in table.constraints if isinstance(check, CheckConstraint)]
    assert len(table.columns) <= 37
    assert len(table.indexes) <= 16
    assert len(checks) <= 7


@pytest.mark.parametrize(
    "values",
    [
        {"definition_id": 1, "scheduled_for": NOW},
        {"idempotency_key": "key"},
        {"idempotency_key": "key", "unique_while": "pending", "started_at": NOW},
        {"idempotency_key": "key", "unique_while": "waiting"},
        {"status": "running", **KEY, "concurrency_share": 1, **LOCK},
    ],
    ids=["slot", "idempotency key", "pending", "waiting", "share"],
)
def test_second_run_of_what_is_unique_is_refused(engine: Engine, values: dict[str, Any]) -> None:
    insert(engine, JobRun(job_type="task", **values))
    with pytest.raises(IntegrityError):
        insert(engine, JobRun(job_type="task", **values))


def test_second_failure_of_an_attempt_is_refused(engine: Engine) -> None:
    insert(engine, JobRun(id=1, job_type="task"))
    failure = {"run_id": 1, "attempt": 1, "worker": "x", "error_type": "E", "error": "e"}
    insert(engine, JobFailure(**failure))
    with pytest.raises(IntegrityError):
        insert(engine, JobFailure(**failure))


def test_row_of_defaults_is_a_queued_run(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job_runs (job_type) VALUES ('task')"))
    with Session(engine) as session:
        run = session.get_one(JobRun, 1)
    assert (run.status, run.queue, run.priority, run.attempts) == ("queued", "default", 0, 0)
    assert (run.payload, run.result) == ({}, None)
    assert run.run_at.tzinfo is timezone.utc


def test_every_index_and_constraint_has_a_name_of_its_own(engine: Engine) -> None:
    inspector = inspect(engine)
    names: list[str | None] = []
    for table in sorted(NAMES):
        names += [index["name"] for index in inspector.get_indexes(table)]
        names += [check["name"] for check in inspector.get_check_constraints(table)]
        names += [key["name"] for key in inspector.get_foreign_keys(table)]
        if engine.dialect.name == "postgresql":  # SQLite's AUTOINCREMENT makes it the column's.
            names.append(inspector.get_pk_constraint(table)["name"])
    assert all(name is not None and "job_" in name for name in names), names
    assert len(names) == len(set(names))
    declared = {index.name for table in Base.metadata.tables.values() for index in table.indexes}
    assert declared <= set(names)
    keys = {str(table.primary_key.name) for table in Base.metadata.tables.values()}
    assert keys == {f"pk_{table}" for table in NAMES}


def test_rows_that_refer_to_a_run_are_found_by_an_index(engine: Engine) -> None:
    """Otherwise deleting a run would read whole tables for the rows that refer to it."""
    inspector = inspect(engine)
    references = [
        (table, key["constrained_columns"])
        for table in inspector.get_table_names()
        for key in inspector.get_foreign_keys(table)
        if key["referred_table"] == "job_runs"
    ]
    tables = ("job_failures", "job_outputs", "job_steps")
    assert sorted(references) == [(table, ["run_id"]) for table in tables]
    for table, columns in references:
        leading = [index["column_names"][: len(columns)] for index in inspector.get_indexes(table)]
        assert columns in leading


class TestTimes:
    def test_naive_time_is_refused(self, engine: Engine) -> None:
        with pytest.raises(StatementError, match=r"has no time zone\. Give an aware one"):
            insert(engine, JobRun(job_type="task", run_at=datetime(2026, 1, 31)))
        with Session(engine) as session, pytest.raises(StatementError, match="no time zone"):
            session.query(JobRun).filter(JobRun.run_at < datetime(2026, 1, 31)).all()

    @pytest.mark.parametrize("hours", [-11, 0, 5.75, 14])
    def test_time_of_any_zone_is_the_same_instant_afterwards(
        self, engine: Engine, hours: float
    ) -> None:
        zone = timezone(timedelta(hours=hours))
        insert(engine, JobRun(id=1, job_type="task", run_at=NOW.astimezone(zone)))
        with Session(engine) as session:
            run = session.get_one(JobRun, 1)
            count = session.query(JobRun).filter(JobRun.run_at == NOW.astimezone(zone)).count()
        assert run.run_at == NOW
        assert run.run_at.tzinfo is timezone.utc
        assert count == 1


class TestCreation:
    def test_create_all_and_create_tables_make_the_same(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs
    ) -> None:
        with app.app_context():
            assert create_tables(db.engine) == []  # It returns the tables that it created.
            created = shape(db.engine)
            db.drop_all()
            assert set(create_tables(db.engine)) == NAMES
            assert shape(db.engine) == created

    def test_naming_convention_of_the_app_s_own_leaves_their_names_alone(
        self, engine: Engine
    ) -> None:
        convention = dict.fromkeys(("ck", "fk", "ix", "pk", "uq"), "app_%(table_name)s")
        convention["ck"] = "app_%(table_name)s_%(constraint_name)s"
        metadata = MetaData(naming_convention=convention)
        created = shape(engine)
        Base.metadata.drop_all(engine)
        add_tables(metadata, engine.dialect.name)
        metadata.create_all(engine)
        assert shape(engine) == created

    def test_init_command_creates_them(self, app: Flask, db: SQLAlchemy) -> None:
        CronJobs(app)
        first = app.test_cli_runner().invoke(args=["jobs", "admin", "init"])
        assert first.exit_code == 0, first.output
        assert all(name in first.output for name in NAMES)
        again = app.test_cli_runner().invoke(args=["jobs", "admin", "init"])
        assert (again.exit_code, again.output) == (0, "All tables exist.\n")

    @on_postgresql
    def test_payload_is_jsonb_on_postgresql(self, engine: Engine) -> None:
        types = {row["name"]: str(row["type"]) for row in inspect(engine).get_columns("job_runs")}
        expected = ("JSONB", "BIGINT", "BIGINT")
        assert (types["payload"], types["id"], types["definition_id"]) == expected

    def test_table_of_the_app_s_own_by_one_of_the_names_is_not_replaced(self) -> None:
        metadata = MetaData()
        own = Table("job_ticks", metadata, Column("id", Integer, primary_key=True))
        copy_tables(metadata, "sqlite")
        assert metadata.tables["job_ticks"] is own
        assert "job_runs" in metadata.tables


def shape(engine: Engine) -> dict[str, object]:
    """Return columns, indexes and checks of all job tables, as the database has them."""
    inspector = inspect(engine)
    return {
        table: (
            [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)],
            sorted(str(index["name"]) for index in inspector.get_indexes(table)),
            sorted(str(check["name"]) for check in inspector.get_check_constraints(table)),
            sorted(str(key["name"]) for key in inspector.get_foreign_keys(table)),
            inspector.get_pk_constraint(table)["name"],
        )
        for table in sorted(NAMES)
    }
