"""Users, their invoices, ledgers and sessions, and the numbers on the front page."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import DateTime, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .extensions import Base


class User(Base):
    """A customer who signed up, or one of our own staff."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    password_hash: Mapped[str]
    timezone: Mapped[str]
    """An IANA time zone: the weekly report is sent on Monday morning there."""
    is_staff: Mapped[bool] = mapped_column(default=False)


class Invoice(Base):
    """An invoice of a user to one of their customers."""

    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey(User.id), index=True)
    number: Mapped[str]
    customer_email: Mapped[str]
    cents: Mapped[int]
    issued_on: Mapped[date]
    due_on: Mapped[date]
    paid_on: Mapped[date | None]
    by_card: Mapped[bool] = mapped_column(default=False)

    user: Mapped[User] = relationship()


class Entry(Base):
    """A line of a user's ledger: money that came in, and the sum of all that came in so far."""

    __tablename__ = "entries"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey(User.id), index=True)
    text: Mapped[str]
    cents: Mapped[int]
    balance: Mapped[int]


class Statement(Base):
    """The sum of a user's invoices of a month, written when the month is closed."""

    __tablename__ = "statements"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey(User.id), index=True)
    month: Mapped[str]
    cents: Mapped[int]


class Session(Base):
    """A login. The browser holds its id in the signed cookie."""

    __tablename__ = "sessions"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey(User.id), index=True)
    # SQLite stores no offset: all times are in UTC, and only the database compares them.
    expires_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)


class Figure(Base):
    """A number on the front page, which takes too long to count at each request."""

    __tablename__ = "figures"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int]
