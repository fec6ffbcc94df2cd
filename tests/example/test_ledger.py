"""The ledger of the example app: a user's lines one after the other."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from example_app import tasks
from example_app.models import Entry, Invoice
from tests.example.tally import PASSWORD, Tally, hidden_fields, submit
from tests.marks import REDIRECTED


@pytest.fixture
def ada(staff: FlaskClient, tally: Tally) -> FlaskClient:
    """The browser of Ada, who has open invoices."""
    client = tally.app.test_client()
    submit(client, "/login", email="ada@example.com", password=PASSWORD)
    return client


def pay(client: FlaskClient, invoice: Invoice) -> int:
    fields = hidden_fields(client, "/")
    return client.post(f"/invoices/{invoice.id}/paid", data=fields).status_code


def test_lines_keep_their_order_if_the_first_is_retried(
    tally: Tally, ada: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tally.all(
        select(Invoice).where(Invoice.user_id == 2, Invoice.paid_on.is_(None)).order_by(Invoice.id)
    )
    with monkeypatch.context() as patch:
        patch.delattr(tasks, "Entry")  # This is as if a deploy had forgotten the table.
        assert pay(ada, first) in REDIRECTED
        tally.tick()
        assert pay(ada, second) in REDIRECTED
        tally.tick()
    assert [run.status for run in tally.runs("book")] == ["failed", "queued"]
    tally.retry(tally.runs("book")[0].id)
    tally.tick()
    lines = tally.all(select(Entry).order_by(Entry.id))
    assert [line.balance for line in lines] == [first.cents, first.cents + second.cents]
    assert "Received" in ada.get("/").text


def test_invoice_is_paid_once_and_by_its_own_user(tally: Tally, ada: FlaskClient) -> None:
    (mine, *_) = tally.all(
        select(Invoice).where(Invoice.user_id == 2, Invoice.paid_on.is_(None)).order_by(Invoice.id)
    )
    (theirs, *_) = tally.all(select(Invoice).where(Invoice.user_id == 3))
    assert [pay(ada, mine), pay(ada, mine), pay(ada, theirs)] == [302, 404, 404]
    assert len(tally.runs("book")) == 1
