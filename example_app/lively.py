"""Rows for screenshots: an invented day of Tally's jobs, the same each time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import insert

from flask_cronjobs import Schedule, __version__
from flask_cronjobs.core.outcome import fingerprint
from flask_cronjobs.models import (
    JobBatch,
    JobDefinition,
    JobEffect,
    JobFailure,
    JobOperation,
    JobPause,
    JobRun,
    JobStep,
    JobTick,
)

_HOSTS = ("web-1", "web-2")
#: Name, task, schedule, time zone, and how many seconds a run takes.
DEFINITIONS: tuple[tuple[str, str, str, str, float], ...] = (
    ("send_invoice_reminders", "send_invoice_reminders", "0 8 * * *", "America/New_York", 41.0),
    ("refresh_cache", "refresh_cache", "*/10 * * * *", "UTC", 0.34),
    ("refresh_cache:lagos", "refresh_cache", "5-59/10 * * * *", "Africa/Lagos", 0.5),
    ("cleanup_nightly", "cleanup_nightly", "30 2 * * *", "America/New_York", 3.1),
    ("plan_weekly_reports", "plan_weekly_reports", "0 3 * * 6", "America/New_York", 8.2),
)
_SMTP = "smtplib.SMTPServerDisconnected"
_SMTP_ERROR = "Connection unexpectedly closed: timed out"
_STACK = """\
Traceback (most recent call last):
  File "/srv/tally/example_app/tasks.py", line 115, in send_weekly_report
    return jobs.once(f"mail:{current_run.idempotency_key}", send_mail, letter)
  File "/srv/tally/example_app/mail.py", line 38, in send_mail
    with smtplib.SMTP(config["MAIL_HOST"], config["MAIL_PORT"], timeout=20) as server:
  File "/usr/lib/python3.13/smtplib.py", line 398, in getreply
    raise SMTPServerDisconnected("Connection unexpectedly closed: "
smtplib.SMTPServerDisconnected: Connection unexpectedly closed: timed out
"""


def fill(db: SQLAlchemy, now: datetime | None = None) -> int:
    """Fill the empty tables with a day that went mostly well, and commit.

    :param now: the end of the day.
    :returns: the id of a dead run with three attempts.
    """
    now = now or datetime.now(timezone.utc)
    chance = random.Random(2026)
    session = db.session
    for row in _definitions(now):
        session.execute(insert(JobDefinition), row)
    session.execute(insert(JobRun), list(_scheduled_runs(now, chance)))
    worth_a_look = 0
    for run, failures in _enqueued_runs(now):
        run_id = session.execute(insert(JobRun).returning(JobRun.id), run).scalar_one()
        for failure in failures:
            session.execute(insert(JobFailure), {"run_id": run_id, **failure})
        if len(failures) == 3:
            worth_a_look = run_id
    session.execute(insert(JobTick), list(_ticks(now, chance)))
    session.add(JobEffect(**_effect(now)))
    session.add_all(_operations(now, worth_a_look))
    session.add(_closing_month(now))
    session.flush()
    session.add_all(_steps_of_month(now))
    session.add_all(_ledgers(now))
    session.commit()
    return worth_a_look


def _definitions(now: datetime) -> Iterator[dict[str, Any]]:
    for name, task, cron, zone, _ in DEFINITIONS:
        paused = name == "refresh_cache:lagos"
        yield {
            "name": name,
            "job_type": task,
            "schedule": cron,
            "timezone": zone,
            "origin": "database" if ":" in name else "code",
            "paused_at": now - timedelta(hours=3, minutes=12) if paused else None,
            "next_run_at": None if paused else Schedule(cron, zone).next_after(now),
        }


def _scheduled_runs(now: datetime, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number, (name, task, cron, zone, seconds) in enumerate(DEFINITIONS, start=1):
        until = now - timedelta(hours=3, minutes=12) if name == "refresh_cache:lagos" else now
        slots = list(Schedule(cron, zone).between(now - timedelta(days=14), until))[-10:]
        for back, slot in zip(range(len(slots), 0, -1), slots, strict=True):
            yield _run(task, slot, number) | _fate(name, back, slot, seconds, chance)


def _fate(
    name: str, back: int, slot: datetime, seconds: float, chance: random.Random
) -> dict[str, Any]:
    """Return the column values of a definition's run; *back* counts from 1, its latest run."""
    started = slot + timedelta(seconds=chance.uniform(0.4, 2))
    ended = started + timedelta(seconds=seconds * chance.uniform(0.7, 1.4))
    fates: dict[tuple[str, int], dict[str, Any]] = {
        ("cleanup_nightly", 4): _gave_up(
            "sqlalchemy.exc.OperationalError", "server closed the connection unexpectedly", ended
        ),
        ("refresh_cache", 3): {"status": "skipped", "attempts": 0, "finished_at": slot},
        ("refresh_cache", 6): {"attempts": 3},
        ("refresh_cache:lagos", 2): {"status": "cancelled", "last_error": "cancelled by ada"},
    }
    defaults = {"status": "succeeded", "attempts": 1, "started_at": started, "finished_at": ended}
    return _even(defaults | fates.get((name, back), {}))


def _enqueued_runs(now: datetime) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield enqueued runs, each with the failures of its attempts."""
    for user, minutes in enumerate((300, 290, 200, 31), start=1):
        ended = now - timedelta(minutes=minutes)
        run = _run("send_welcome", ended, payload={"user_id": user}) | {"label": f"user {user}"}
        error = ("ValueError", "The address has no domain: 'grace@'")
        named = {"fingerprint": fingerprint("send_welcome", *error)}
        yield run | named | _gave_up(*error, ended), [_failure(3, ended, *error)]
    for user, minutes in enumerate((52, 44), start=7):
        ended = now - timedelta(minutes=minutes)
        report = _report(user, ended - timedelta(minutes=20))
        report["fingerprint"] = fingerprint("send_weekly_report", _SMTP, _SMTP_ERROR)
        yield (
            report | _gave_up(_SMTP, _SMTP_ERROR, ended),
            [
                _failure(3, ended, _SMTP, _SMTP_ERROR),
                _failure(2, ended - timedelta(minutes=4), "TimeoutError", "timed out"),
                _failure(1, ended - timedelta(minutes=7), _SMTP, _SMTP_ERROR),
            ],
        )
    failed_at = now - timedelta(seconds=70)
    yield (
        _report(9, now - timedelta(minutes=2)) | _will_retry(failed_at),
        [_failure(1, failed_at, _SMTP, _SMTP_ERROR)],
    )
    for user, seconds in ((20, 14), (21, 9), (22, 3)):
        yield _report(user, now - timedelta(seconds=seconds)), []
    yield _run("resize_photos", now - timedelta(minutes=6)) | {"queue": "images"}, []


def _report(user: int, due: datetime) -> dict[str, Any]:
    payload = {"user_id": user, "date_from": "2026-11-09", "date_to": "2026-11-15"}
    key = f"weekly_report:{user}:2026-11-09"
    named = {"idempotency_key": key, "label": f"user {user}", "batch_id": 1}
    return _run("send_weekly_report", due, payload=payload) | named


def _run(
    task: str, slot: datetime, definition: int | None = None, payload: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "definition_id": definition,
        "job_type": task,
        "payload": payload or {},
        "scheduled_for": slot,
        "run_at": slot,
        "created_at": slot,
        "status": "queued",
        "attempts": 0,
        "max_attempts": 3,
    }


def _even(values: dict[str, Any]) -> dict[str, Any]:
    """Return *values* with all columns that any of these runs sets, for one INSERT of all."""
    columns = ("locked_by", "locked_until", "failed_at", "last_error", "error_type", "progress",
               "progress_message")  # fmt: skip
    return dict.fromkeys(columns) | values


def _gave_up(kind: str, error: str, ended: datetime) -> dict[str, Any]:
    return {
        "status": "dead",
        "attempts": 3,
        "started_at": ended - timedelta(seconds=2.4),
        "failed_at": ended,
        "finished_at": ended,
        "error_type": kind,
        "last_error": error,
    }


def _will_retry(failed_at: datetime) -> dict[str, Any]:
    return {
        "status": "failed",
        "attempts": 1,
        "started_at": failed_at - timedelta(seconds=2),
        "failed_at": failed_at,
        "run_at": failed_at + timedelta(seconds=95),
        "error_type": _SMTP,
        "last_error": _SMTP_ERROR,
    }


def _running(started: datetime) -> dict[str, Any]:
    return {
        "status": "running",
        "finished_at": None,
        "locked_by": "web-2:48113:f3a91c",
        "locked_until": datetime.now(timezone.utc) + timedelta(seconds=100),
        "progress": 0.62,
        "progress_message": "124 of 200",
    }


def _failure(attempt: int, ended: datetime, kind: str, error: str) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "worker": f"{_HOSTS[attempt % 2]}:4711:9be2c0",
        "started_at": ended - timedelta(seconds=2.4),
        "failed_at": ended,
        "error_type": kind,
        "error": error,
        "stack": _STACK,
    }


def _ticks(now: datetime, chance: random.Random) -> Iterator[dict[str, Any]]:
    """Yield a tick for each minute of a day, from two hosts, with a gap of two hours."""
    for minutes in range(24 * 60 - 1, -1, -1):
        started = now - timedelta(minutes=minutes, seconds=12)
        if 9 * 60 < minutes <= 11 * 60:
            continue
        busy = 1 + 2 * (abs(minutes - 12 * 60) < 8 * 60)
        host = _HOSTS[minutes % 2]
        yield {
            "worker": f"{host}:{4000 + minutes}:c0ffee",
            "host": host,
            "pid": 4000 + minutes,
            "started_at": started,
            "seen_at": started + timedelta(seconds=1),
            "finished_at": started + timedelta(seconds=chance.uniform(0.2, 6)),
            "clock_offset": 0.02,
            "version": __version__,
            "recorded": chance.randrange(3),
            "succeeded": chance.randrange(4) * busy,
            "failed": int(chance.random() < 0.05 * busy),
            "dead": int(minutes in (300, 290, 200, 52, 44, 31)),
        }


def _effect(now: datetime) -> dict[str, Any]:
    return {
        "key": "invoice_reminder:843:2",
        "state": "in_doubt",
        "created_at": now - timedelta(minutes=32),
    }


def _operations(now: datetime, retried: int) -> Iterator[Any]:
    """Yield what operators did: two pauses, a cancel, a retry of two runs, and a run by hand.

    This includes the row of the pause of a queue, and the batch of the reports.
    """
    acts = (
        ("paused", "definition refresh_cache:lagos", 192, None, None),
        ("cancelled", f"run {retried - 12}", 180, retried - 12, None),
        ("retried", "2 runs of send_weekly_report, status dead", 70, None, 2),
        ("ran now", "refresh_cache", 55, retried - 28, None),
        ("paused", "queue images", 12, None, None),
    )
    for what, target, minutes, run_id, asked in acts:
        at = now - timedelta(minutes=minutes)
        yield JobOperation(
            what=what, target=target, actor="ada", run_id=run_id, asked=asked, done=asked,
            started_at=at, seen_at=at, finished_at=at,
        )  # fmt: skip
    yield JobPause(
        kind="queue", name="images", paused_at=now - timedelta(minutes=12), paused_by="ada"
    )
    yield JobBatch(key="weekly_reports:2026-11-09", opened_at=now - timedelta(hours=2))


def _closing_month(now: datetime) -> JobRun:
    """Return a run with steps that is in its second attempt, since a deploy ended the first."""
    begun, again = now - timedelta(minutes=11), now - timedelta(minutes=6)
    run = _running(again) | {"started_at": again, "attempts": 2, "label": "month 2026-10"}
    progress = {"progress": 0.41, "progress_message": "820 of 2,000 users"}
    due = begun - timedelta(seconds=40)
    return JobRun(**_run("close_month", due, payload={"month": "2026-10"}) | run | progress, id=101)


def _steps_of_month(now: datetime) -> Iterator[Any]:
    """Yield the first attempt of the run that closes a month, and its steps."""
    begun = now - timedelta(minutes=11)
    yield JobFailure(
        run_id=101, attempt=1, worker="web-1:4711:9be2c0", started_at=begun,
        failed_at=begun + timedelta(minutes=4), error_type="Interrupted",
        error="the worker stopped",
    )  # fmt: skip
    steps = (("sums", "step", 1, 0, 30, True), ("statements", "each", 2, 41, 40, False))
    for name, kind, attempt, chunks, seconds, over in steps:
        yield JobStep(
            run_id=101, name=name, kind=kind, attempt=attempt, chunks=chunks,
            worker="web-2:48113:f3a91c", started_at=begun + timedelta(seconds=seconds - 29),
            finished_at=begun + timedelta(seconds=seconds) if over else None,
            result={"7": 12900, "8": 4100} if over else 820,
        )  # fmt: skip


def _ledgers(now: datetime) -> Iterator[Any]:
    """Yield the runs of two ledgers in strict order; one of them waits for a retry."""
    for number, (user, minutes) in enumerate(((7, 6), (7, 4), (7, 2), (8, 1))):
        at = now - timedelta(minutes=minutes)
        values = {"user_id": user, "text": f"invoice {4711 + number}", "cents": 12900}
        order = {"concurrency_key": f"account:{user}", "concurrency_limit": 1, "strict": True}
        gate = "order" if number in (1, 2) else None
        again = {} if number else {"status": "failed", "attempts": 1, "error_type": "ValueError",
                                   "last_error": "no user 7", "failed_at": at,
                                   "run_at": now + timedelta(seconds=50)}  # fmt: skip
        yield JobRun(
            **_run("book", at, payload=values) | order | {"gate": gate} | again,
            label=f"user {user}",
        )
