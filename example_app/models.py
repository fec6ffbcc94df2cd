"""Users, their invoices, their sessions, and the figures that the front page shows."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import DateTime, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .extensions import Base


class User(Base):
    """Somebody who signed up, or one of our own staff."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    password_hash: Mapped[str]
    timezone: Mapped[str]
    """An IANA zone: the weekly report comes on Monday morning there."""
    is_staff: Mapped[bool] = mapped_column(default=False)


class Invoice(Base):
    """What a customer of a user has to pay."""

    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey(User.id), index=True)
    number: Mapped[str]
    customer_email: Mapped[str]
    cents: Mapped[int]
    issued_on: Mapped[date]
    due_on: Mapped[date]
    paid_on: Mapped[date | None]

    user: Mapped[User] = relationship()


class Session(Base):
    """A login. The browser holds its id in the signed cookie."""

    __tablename__ = "sessions"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey(User.id), index=True)
    # SQLite keeps no offset: it is UTC throughout, and compared in the database only.
    expires_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)


class Figure(Base):
    """A number for the front page, too slow to count at each request."""

    __tablename__ = "figures"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int]
