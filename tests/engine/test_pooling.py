"""FAULTS: behind a pooler each transaction may have another connection, so none may need its own.

What needs one breaks there without a word: session locks, SET, LISTEN, temporary tables, cursors
and prepared statements.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text

from flask_cronjobs import CronJobs, Retry, TickReport, current_run
from flask_cronjobs.engine import tick as tick_module
from flask_cronjobs.models import JobRun
from tests.marks import on_postgresql

Tick = Callable[[], TickReport]
AGAIN = Retry(max_attempts=2, base=0)
NEEDS_A_SESSION = re.compile(
    r"^\s*(SET|RESET|DISCARD|LISTEN|PREPARE|EXECUTE|DECLARE|LOAD)\b"
    r"|advisory_lock|set_config|\bTEMP(ORARY)?\b|\bWITH HOLD\b",
    re.IGNORECASE,
)

pytestmark = on_postgresql


def test_no_statement_of_a_tick_needs_a_session(
    app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that records slots, takes back, runs of every kind, has effects, and prunes."""
    monkeypatch.setattr(tick_module, "PRUNE_EVERY", 1)
    sent: list[str] = []

    @jobs.task(retry=AGAIN, schedule="@yearly", atomic=True)
    def atomic() -> None:
        db.session.execute(text("SELECT count(*) FROM job_runs"))
        if current_run.attempt == 1:
            raise RuntimeError("once")

    @jobs.task(retry=AGAIN, concurrency=1)
    def mails() -> None:
        jobs.once(f"mail:{current_run.id}", lambda: None)
        current_run.progress(0.5)

    with app.app_context():
        tick()
        db.session.execute(text("UPDATE job_definitions SET next_run_at = '2026-01-01'"))
        mails.using(commit=True).enqueue_many([{}] * 2)
        lost = mails.using(idempotency_key="mail").enqueue().id
        db.session.commit()
        db.session.execute(
            text(
                "UPDATE job_runs SET status = 'running', attempts = 1, locked_by = 'gone:1:token',"
                " locked_until = '2026-01-01', concurrency_share = 1 WHERE id = :id"
            ),
            {"id": lost},
        )
        db.session.commit()
        event.listen(db.engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
        report = tick()
        assert (report.reclaimed, report.failed, report.succeeded) == (1, 1, 4)
        assert set(db.session.scalars(select(JobRun.status))) <= {"succeeded", "skipped"}
    assert len(sent) > 10
    assert [statement for statement in sent if NEEDS_A_SESSION.search(statement)] == []
