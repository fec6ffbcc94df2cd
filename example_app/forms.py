"""Check what users type into forms; for each wrong field there is a message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from uuid import UUID
from zoneinfo import available_timezones

from .auth import find_user
from .models import User

LONGEST_REPORT = 366
_EMAIL = re.compile(r"[^@\s,<>]+@[^@\s,<>]+\.[^@\s,<>]+", re.ASCII)


class FormError(ValueError):
    """Some fields are wrong.

    :param errors: what to do about each field, by its name.
    """

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__(" ".join(errors.values()))
        self.errors = errors


@dataclass(frozen=True)
class SignUp:
    """A valid sign-up."""

    name: str
    email: str
    password: str
    timezone: str

    @classmethod
    def read(cls, form: Mapping[str, str]) -> SignUp:
        """Read the sign-up form.

        :raises FormError: a field is wrong.
        """
        name = " ".join(form.get("name", "").split())
        email = form.get("email", "").strip().lower()
        password, zone = form.get("password", ""), form.get("timezone", "")
        errors = {}
        if not 0 < len(name) <= 80 or not name.isprintable():
            errors["name"] = "Please enter your name, in 80 characters at most."
        if not _is_email(email):
            errors["email"] = "Please enter an email address, such as ada@example.com."
        elif find_user(email) is not None:
            errors["email"] = "Somebody has signed up with this address. If it was you, log in."
        if not 10 <= len(password) <= 200:
            errors["password"] = "Please choose a password of 10 characters or more."
        if zone not in available_timezones():
            errors["timezone"] = "Please choose one of the time zones."
        if errors:
            raise FormError(errors)
        return cls(name, email, password, zone)


@dataclass(frozen=True)
class ReportRequest:
    """A report that a support person asked for."""

    user: User
    date_from: date
    date_to: date
    request_id: str
    """New each time the form is shown, so that a double click sends one report."""

    @classmethod
    def read(cls, form: Mapping[str, str]) -> ReportRequest:
        """Read the support form.

        :raises FormError: a field is wrong.
        """
        user = find_user(form.get("email", "").strip().lower())
        date_from, date_to = _date(form.get("date_from")), _date(form.get("date_to"))
        errors = {}
        if user is None:
            errors["email"] = "Nobody has signed up with this address."
        if date_from is None:
            errors["date_from"] = "Please enter a date, such as 2026-01-31."
        if date_to is None:
            errors["date_to"] = "Please enter a date, such as 2026-01-31."
        if date_from and date_to and not 0 <= (date_to - date_from).days < LONGEST_REPORT:
            errors["date_to"] = "Please enter a day not before the first, and within a year."
        if errors or user is None or date_from is None or date_to is None:
            raise FormError(errors)
        return cls(user, date_from, date_to, _request_id(form.get("request_id", "")))


def _is_email(text: str) -> bool:
    return len(text) <= 200 and _EMAIL.fullmatch(text) is not None


def _date(text: str | None) -> date | None:
    try:
        return date.fromisoformat(text or "")
    except ValueError:
        return None


def _request_id(text: str) -> str:
    try:
        return UUID(text).hex
    except ValueError:
        raise FormError({"form": "Something is missing. Please load the page again."}) from None
