"""Sample data: a few users, their invoices, a support person and some old sessions."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

from sqlalchemy import select
from werkzeug.security import generate_password_hash

from .extensions import db
from .models import Invoice, Session, User
from .tasks import OFFICE, enqueue_weekly_report

STAFF = "support@example.com"

_USERS = (
    ("Ada", "ada@example.com", "Europe/London"),
    ("Grace", "grace@example.com", OFFICE),
    ("Chioma", "chioma@example.com", "Africa/Lagos"),
)
#: The user's index, cents, days since the due date, days since it was paid.
_INVOICES: tuple[tuple[int, int, int, int | None], ...] = (
    (0, 120_000, 3, None),
    (0, 45_050, 40, 5),
    (0, 80_000, -20, None),
    (1, 9_900, 12, None),
    (1, 250_000, 5, None),
    (2, 33_333, 30, 2),
    (2, 64_000, 25, None),
)


def add_sample(password: str, day: date | None = None) -> None:
    """Add the sample to empty tables, enqueue the users' reports, and commit.

    :param password: the password of all users.
    :param day: today.
    """
    day = day or datetime.now(timezone.utc).date()
    hashed = generate_password_hash(password)
    staff = User(email=STAFF, name="Sam", password_hash=hashed, timezone=OFFICE, is_staff=True)
    users = [
        User(email=email, name=name, password_hash=hashed, timezone=zone)
        for name, email, zone in _USERS
    ]
    db.session.add_all([staff, *users])
    db.session.flush()
    db.session.add_all(_invoices(users, day))
    long_ago = datetime.now(timezone.utc) - timedelta(days=2)
    db.session.add_all(Session(user_id=user.id, expires_at=long_ago) for user in users)
    for user in users:
        enqueue_weekly_report(user)
    db.session.commit()


def add_card_invoices() -> None:
    """Add two invoices that are due, whose customers pay by card, and commit."""
    user = db.session.scalars(select(User.id).where(User.email == _USERS[2][1])).one()
    day = datetime.now(timezone.utc).date() - timedelta(days=1)  # It has ended everywhere.
    for number, cents in ((812, 12_900), (813, 4_500)):
        invoice = Invoice(
            id=number,
            user_id=user,
            number=f"{day.year}-{number}",
            customer_email=f"customer{number}@example.net",
            cents=cents,
            issued_on=day,
            due_on=day,
            by_card=True,
        )
        db.session.add(invoice)
    db.session.commit()


def _invoices(users: list[User], day: date) -> list[Invoice]:
    return [
        Invoice(
            user_id=users[user].id,
            number=f"{day.year}-{number:03}",
            customer_email=f"customer{number}@example.net",
            cents=cents,
            issued_on=day - timedelta(days=late + 14),
            due_on=day - timedelta(days=late),
            paid_on=None if paid is None else day - timedelta(days=paid),
        )
        for number, (user, cents, late, paid) in enumerate(_INVOICES, start=1)
    ]
