"""The tasks of the example app, on both databases: ticks, and the mails that really arrive."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select, update

from example_app import auth, tasks
from example_app.extensions import db, jobs
from example_app.mailbox import Mailbox
from example_app.models import Invoice, Statement, User
from flask_cronjobs.models import JobRun
from tests.example.tally import LINUS, REMINDED, Tally, hidden_fields, submit
from tests.marks import REDIRECTED


def test_sign_up_enqueues_in_the_transaction_that_makes_the_user(
    tally: Tally, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(user: User) -> None:
        raise ConnectionError("the lights went out")

    with monkeypatch.context() as patch:
        patch.setattr(auth, "start_session", fail)
        with pytest.raises(ConnectionError):
            submit(client, "/signup", **LINUS)
    assert (tally.count(User), tally.count(JobRun)) == (0, 0)

    assert submit(client, "/signup", **LINUS).status_code in REDIRECTED
    assert (tally.count(User), tally.count(JobRun)) == (1, 2)


def test_weekly_report_is_enqueued_for_the_next_monday_of_the_user(
    tally: Tally, client: FlaskClient
) -> None:
    submit(client, "/signup", **LINUS)
    (run,) = tally.runs("send_weekly_report")
    local = run.run_at.astimezone(ZoneInfo("Europe/Helsinki"))
    assert (local.weekday(), local.hour, local.minute) == (0, 7, 0)
    assert timedelta(0) < run.run_at - datetime.now(timezone.utc) <= timedelta(days=7, hours=2)
    assert run.payload["date_from"] == str(local.date() - timedelta(days=7))
    assert run.payload["date_to"] == str(local.date() - timedelta(days=1))
    assert run.idempotency_key == f"weekly_report:1:{run.payload['date_from']}"


def test_weekly_report_is_received_when_its_monday_comes(
    tally: Tally, client: FlaskClient, mailbox: Mailbox
) -> None:
    submit(client, "/signup", **LINUS)
    tally.tick()
    with tally.app.app_context():
        db.session.execute(update(JobRun).values(run_at=datetime.now(timezone.utc)))
        db.session.commit()
    tally.tick()
    (run,) = tally.runs("send_weekly_report")
    assert run.status == "succeeded"
    _, mail = mailbox.to("linus@example.com")
    assert mail["Subject"].startswith(f"Your report, {run.payload['date_from']}")
    assert "Invoices issued: 0, $0.00" in mail.get_content()


def overdue_by(tally: Tally, day: date) -> list[str]:
    """Return the addresses of those with an unpaid invoice that was due before *day*."""
    late = select(Invoice).where(Invoice.paid_on.is_(None), Invoice.due_on < day)
    return [invoice.customer_email for invoice in tally.all(late.order_by(Invoice.id))]


def test_morning_slot_reminds_those_who_are_late(
    tally: Tally, staff: FlaskClient, mailbox: Mailbox
) -> None:
    tally.tick()
    tally.put_back(timedelta(days=1))
    assert tally.tick().failed == 0
    (run,) = tally.runs("send_invoice_reminders")
    local = run.scheduled_for.astimezone(ZoneInfo("America/New_York"))
    assert (local.hour, local.minute) == (8, 0)
    assert [mail["To"] for mail in mailbox.mails] == overdue_by(tally, local.date()) == REMINDED
    assert run.result == {"overdue": 4}
    assert run.progress == 1


def test_retry_after_a_failure_midway_sends_no_reminder_twice(
    tally: Tally, staff: FlaskClient, mailbox: Mailbox
) -> None:
    mailbox.answers[REMINDED[1]] = ["451 4.3.0 Try again later", "421 4.3.2 Closing"]
    run_id = tally.run_now("send_invoice_reminders")
    for _ in range(2):
        assert tally.tick().failed == 1
        assert [mail["To"] for mail in mailbox.mails] == REMINDED[:1]
        tally.retry(run_id)
    assert tally.tick().succeeded == 1
    assert [mail["To"] for mail in mailbox.mails] == REMINDED
    (run,) = tally.runs("send_invoice_reminders")
    assert (run.status, run.attempts) == ("succeeded", 3)


def test_a_month_is_closed_in_steps(
    tally: Tally, staff: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick past its budget stops after a step, and the next tick continues."""
    (issued,) = tally.all(select(Invoice.issued_on).where(Invoice.id == 2))
    month = f"{issued:%Y-%m}"
    with tally.app.app_context():
        tasks.close_month.using(commit=True).enqueue(month)
        for ended in (0, 2, 3, 3):
            assert jobs.tick(budget=0).released == 1
            assert db.session.query(Statement).count() == ended
            db.session.commit()
        assert jobs.tick(budget=0).succeeded == 1
    (run,) = tally.runs("close_month")
    assert run.result == sum(row.cents for row in tally.all(select(Statement)))
    of_month = [bill for bill in tally.all(select(Invoice)) if f"{bill.issued_on:%Y-%m}" == month]
    assert run.result == sum(bill.cents for bill in of_month) > 0


def test_double_click_sends_one_report(tally: Tally, staff: FlaskClient, mailbox: Mailbox) -> None:
    form = hidden_fields(staff, "/support")
    form |= {"email": "ada@example.com", "date_from": "2026-01-01", "date_to": "2026-01-07"}
    for _ in range(2):
        assert staff.post("/support", data=form).status_code in REDIRECTED
    tally.tick()
    assert len(mailbox.mails) == 1
    # A second request on purpose sends it again.
    del form["csrf"], form["request_id"]
    submit(staff, "/support", **form)
    tally.tick()
    assert len(mailbox.mails) == 2
