"""The tasks: what Tally does on a schedule, and what it does in the background.

Two habits make them safe to run again: what might be enqueued twice has an idempotency key, and
each email is sent inside `jobs.once`, which knows whether that email was sent before.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from flask import current_app
from sqlalchemy import delete, func, select, update

from flask_cronjobs import BatchClosed, Discard, Retry, Schedule, current_run
from flask_cronjobs.models import JobRun

from . import cards, letters
from .extensions import db, jobs
from .mail import send_mail
from .models import Entry, Figure, Invoice, Session, Statement, User

OFFICE = "America/New_York"
"""The time zone of Tally's own schedules."""

#: Mail servers are down for minutes, seldom for hours.
MAIL_RETRY = Retry(max_attempts=10, backoff="exponential", base=30, cap=3600)

#: The mail server takes two emails a second, from all hosts together, and two at once.
MAIL_RATE: dict[str, Any] = {"rate": "2/s", "rate_key": "mail", "burst": 2}


@jobs.task(schedule="0 8 * * *", timezone=OFFICE, retry=MAIL_RETRY)
def send_invoice_reminders() -> dict[str, int]:
    """Remind each customer whose invoice is overdue, once a week.

    1. Read everything that is needed.
    2. End the transaction, so that none is open while email is sent.
    3. Send each email once: a retry continues where the last attempt failed.
    """
    # Use the slot's day, not today: a retry after midnight is for the same day.
    day = current_run.scheduled_for.astimezone(ZoneInfo(OFFICE)).date()
    unpaid = Invoice.paid_on.is_(None) & Invoice.by_card.is_(False)
    overdue = select(Invoice).where(unpaid, Invoice.due_on < day)
    due = {
        f"invoice_reminder:{invoice.id}:{(day - invoice.due_on).days // 7}": letters.reminder(
            invoice, day
        )
        for invoice in db.session.scalars(overdue.order_by(Invoice.id))
    }
    db.session.rollback()
    for number, (key, letter) in enumerate(due.items(), start=1):
        jobs.once(key, send_mail, letter)
        current_run.progress(number / len(due), f"{number} of {len(due)}")
    return {"overdue": len(due)}


@jobs.task(schedule="0 1 * * *", timezone=OFFICE, retry=Retry(max_attempts=5, base=2))
def check_billing_nightly() -> dict[str, int]:
    """Charge the cards for invoices that are due, each once, and mark them as paid.

    A worker may die after a charge and before the invoice is marked as paid. Then the next attempt
    finds the invoice still unpaid, and `once` finds that its charge is done.
    """
    day = current_run.scheduled_for.astimezone(ZoneInfo(OFFICE)).date()
    due = select(Invoice).where(Invoice.by_card, Invoice.paid_on.is_(None), Invoice.due_on <= day)
    charges = [
        (invoice.id, invoice.cents) for invoice in db.session.scalars(due.order_by(Invoice.id))
    ]
    db.session.rollback()
    for invoice_id, cents in charges:
        jobs.once(f"invoice_charge:{invoice_id}", cards.charge, invoice_id, cents)
        time.sleep(current_app.config["CARD_PAUSE"])
        db.session.execute(update(Invoice).where(Invoice.id == invoice_id).values(paid_on=day))
        db.session.commit()
    return {"charged": len(charges)}


@jobs.task(schedule="*/10 * * * *", catchup="latest", timeout=60)
def refresh_cache() -> None:
    """Update the numbers on the front page. If slots were missed, one run is enough."""
    open_invoices = Invoice.paid_on.is_(None)
    cents = func.coalesce(func.sum(Invoice.cents), 0)
    figures = {
        "users": select(func.count(User.id)).where(User.is_staff.is_(False)),
        "open invoices": select(func.count(Invoice.id)).where(open_invoices),
        "open dollars": select(cents // 100).where(open_invoices),
    }
    for name, query in figures.items():
        db.session.merge(Figure(name=name, value=db.session.scalars(query).one()))
    db.session.commit()


@jobs.task(schedule="30 2 * * *", timezone=OFFICE, atomic=True)
def cleanup_nightly() -> dict[str, int]:
    """Delete expired sessions. Atomic: the deletion and the outcome are committed together."""
    expired = Session.expires_at <= datetime.now(timezone.utc)
    ids = db.session.scalars(delete(Session).where(expired).returning(Session.id)).all()
    return {"sessions": len(ids)}


@jobs.task(schedule="0 3 * * 6", timezone=OFFICE)
def plan_weekly_reports() -> None:
    """Enqueue each user's report for next Monday, unless it is already enqueued. It is a batch."""
    week, _ = _next_week(OFFICE)
    key, payload = f"weekly_reports:{week}", {"week": week}
    users = db.session.scalars(select(User).where(User.is_staff.is_(False))).all()
    with (
        suppress(BatchClosed),  # An earlier attempt has filled it.
        jobs.batch(key, then=mail_report_summary, then_payload=payload),
    ):
        for user in users:
            enqueue_weekly_report(user)
    db.session.commit()


def enqueue_weekly_report(user: User) -> JobRun:
    """Enqueue *user*'s report for next Monday at seven in their time zone, once a week.

    The run is inserted in ``db.session``; the caller commits.
    """
    week, monday = _next_week(user.timezone)
    last_day = date.fromisoformat(week) + timedelta(days=6)
    key = f"weekly_report:{user.id}:{week}"
    return send_weekly_report.using(run_at=monday, idempotency_key=key).enqueue(
        user.id, week, last_day.isoformat()
    )


def _next_week(zone: str) -> tuple[str, datetime]:
    """Return the first day of the week that the next report in *zone* covers, and its time."""
    monday = Schedule("0 7 * * 1", zone).next_after(datetime.now(timezone.utc))
    assert monday is not None
    first_day = monday.astimezone(ZoneInfo(zone)).date() - timedelta(days=7)
    return first_day.isoformat(), monday


@jobs.task(retry=MAIL_RETRY, timeout=60, **MAIL_RATE)
def mail_report_summary(week: str) -> None:
    """Tell the support team how many of a week's reports were sent."""
    counts = current_run.batch
    if counts is None:
        raise Discard("no batch has ended in this run")
    staff = db.session.scalars(select(User.email).where(User.is_staff.is_(True)))
    summaries = [letters.report_summary(email, week, counts) for email in staff]
    db.session.rollback()
    for summary in summaries:
        jobs.once(f"report_summary:{week}:{summary.to}", send_mail, summary)


@jobs.task(retry=MAIL_RETRY, timeout=60, **MAIL_RATE)
def send_weekly_report(user_id: int, date_from: str, date_to: str) -> str | None:
    """Send a user a report from one day to another.

    The payload is an id and two dates. Everything else is read when the task runs, so that it is
    up to date.
    """
    user = db.session.get(User, user_id)
    if user is None:
        raise Discard(f"the user {user_id} is gone")
    invoices = db.session.scalars(select(Invoice).where(Invoice.user_id == user.id))
    letter = letters.report(
        user, invoices, date.fromisoformat(date_from), date.fromisoformat(date_to)
    )
    db.session.rollback()
    return jobs.once(f"mail:{current_run.idempotency_key}", send_mail, letter)


@jobs.task(retry=MAIL_RETRY, timeout=60, **MAIL_RATE)
def send_welcome(user_id: int) -> str | None:
    """Welcome a new user."""
    user = db.session.get(User, user_id)
    if user is None:
        raise Discard(f"the user {user_id} is gone")
    letter = letters.welcome(user)
    db.session.rollback()
    return jobs.once(f"welcome:{user_id}", send_mail, letter)


@jobs.task(concurrency_key="account:{user_id}", order="strict", atomic=True)
def book(user_id: int, text: str, cents: int) -> dict[str, int]:
    """Add a line to a user's ledger.

    Each line continues from the balance before it. So the lines of one user are written in the
    order in which they were enqueued, even if one fails and is retried.
    """
    lines = select(Entry.balance).where(Entry.user_id == user_id).order_by(Entry.id.desc())
    balance = (db.session.scalars(lines.limit(1)).first() or 0) + cents
    db.session.add(Entry(user_id=user_id, text=text, cents=cents, balance=balance))
    return {"balance": balance}


@jobs.task
def close_month(month: str) -> int:
    """Write each user's statement of a month, such as ``2026-10``; return the sum in cents.

    Each step is done once, however often the run is stopped. The statements of a chunk of users and
    the position after them are committed together.
    """
    sums = jobs.step("sums", month_sums, month)
    for ids in jobs.each("statements", next_users):
        for user_id in ids:
            cents = sums.get(str(user_id), 0)
            db.session.add(Statement(user_id=user_id, month=month, cents=cents))
    return sum(sums.values())


def month_sums(month: str) -> dict[str, int]:
    """Return the sum of each user's invoices of a month, in cents, by the user's id."""
    first = date.fromisoformat(f"{month}-01")
    next_month = (first + timedelta(days=31)).replace(day=1)
    of_month = Invoice.issued_on.between(first, next_month - timedelta(days=1))
    sums = select(Invoice.user_id, func.sum(Invoice.cents)).where(of_month)
    rows = db.session.execute(sums.group_by(Invoice.user_id))
    return {str(user_id): int(cents) for user_id, cents in rows}


def next_users(after: int | None) -> list[int]:
    """Return the next two users."""
    ids = select(User.id).where(User.is_staff.is_(False), User.id > (after or 0))
    return list(db.session.scalars(ids.order_by(User.id).limit(2)))
