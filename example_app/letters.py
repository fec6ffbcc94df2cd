"""The texts of the emails."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from flask_cronjobs import BatchCounts

from .mail import Letter
from .models import Invoice, User


def dollars(cents: int) -> str:
    """Return *cents* as ``$1,234.50``."""
    return f"${cents / 100:,.2f}"


def welcome(user: User) -> Letter:
    """Return the first email to a user."""
    return Letter(
        user.email,
        f"Welcome to Tally, {user.name}",
        "Your account is ready. Each Monday you will get a report on the previous week.\n",
    )


def reminder(invoice: Invoice, day: date) -> Letter:
    """Return a reminder of an invoice that is overdue on *day*."""
    days = (day - invoice.due_on).days
    return Letter(
        invoice.customer_email,
        f"Reminder: invoice {invoice.number} from {invoice.user.name}",
        f"Invoice {invoice.number} for {dollars(invoice.cents)} was due on {invoice.due_on}, "
        f"{days} {'day' if days == 1 else 'days'} ago. Please pay it soon.\n",
    )


def report(user: User, invoices: Iterable[Invoice], date_from: date, date_to: date) -> Letter:
    """Return a report on *invoices* from one day to another, both included."""
    invoices = list(invoices)
    issued = [invoice for invoice in invoices if date_from <= invoice.issued_on <= date_to]
    paid = [
        invoice
        for invoice in invoices
        if invoice.paid_on is not None and date_from <= invoice.paid_on <= date_to
    ]
    return Letter(
        user.email,
        f"Your report, {date_from} to {date_to}",
        f"Hello {user.name},\n\n{_line('issued', issued)}{_line('paid', paid)}",
    )


def report_summary(to: str, week: str, counts: BatchCounts) -> Letter:
    """Return an email to the support team about how many reports on a *week* were sent."""
    return Letter(
        to,
        f"Weekly reports from {week}: {counts.succeeded} of {counts.total} sent",
        f"Sent: {counts.succeeded}\nFailed: {counts.dead}\nCancelled: {counts.cancelled}\n",
    )


def _line(what: str, invoices: list[Invoice]) -> str:
    total = dollars(sum(invoice.cents for invoice in invoices))
    return f"Invoices {what}: {len(invoices)}, {total}\n"
