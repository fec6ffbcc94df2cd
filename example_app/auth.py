"""Log users in and out, and decide who may use the job pages."""

from __future__ import annotations

import functools
import secrets
from datetime import datetime, timedelta, timezone

from flask import abort, g, redirect, request, session, url_for
from sqlalchemy import delete, select
from werkzeug.security import check_password_hash, generate_password_hash

from .extensions import db
from .models import Session, User

SESSION_AGE = timedelta(days=14)


def may_use_job_pages(action: str) -> bool:
    """Return whether a request to /jobs is allowed: only staff may read and act.

    :param action: ``"read"`` or ``"act"``.
    """
    user = current_user()
    if user is None and action == "read":
        abort(redirect(url_for("pages.log_in", next=request.path)))
    return user is not None and user.is_staff


def who_acts() -> str:
    """Return the user's name for the log of the job pages."""
    user = current_user()
    return user.email if user is not None else "nobody"


def current_user() -> User | None:
    """Return the user who is logged in; looked up once per request."""
    if "user" not in g:
        now = datetime.now(timezone.utc)
        query = select(User).join(Session, Session.user_id == User.id)
        with_session = query.where(Session.id == session.get("id"), Session.expires_at > now)
        g.user = db.session.scalars(with_session).one_or_none()
    user: User | None = g.user
    return user


def find_user(email: str) -> User | None:
    """Return the user with *email*, or None."""
    return db.session.scalars(select(User).where(User.email == email)).one_or_none()


def check_password(email: str, password: str) -> User | None:
    """Return the user with *email* if *password* is theirs, otherwise None."""
    user = find_user(email)
    # An unknown address takes as long as a wrong password, so that the time does not reveal users.
    matches = check_password_hash(user.password_hash if user else _random_hash(), password)
    return user if matches else None


def start_session(user: User) -> None:
    """Log *user* in, in ``db.session``; the caller commits."""
    expires_at = datetime.now(timezone.utc) + SESSION_AGE
    row = Session(user_id=user.id, expires_at=expires_at)
    db.session.add(row)
    db.session.flush()
    session.clear()
    session["id"] = row.id
    g.user = user


def end_session() -> None:
    """Log the user out, in ``db.session``; the caller commits."""
    db.session.execute(delete(Session).where(Session.id == session.get("id")))
    session.clear()
    g.user = None


def csrf_token() -> str:
    """Return the token that each form of this browser must send."""
    token: str = session.setdefault("csrf", secrets.token_urlsafe())
    return token


def check_csrf() -> None:
    """Refuse a POST request that does not come from one of our forms."""
    sent = request.form.get("csrf", "").encode()
    if request.method == "POST" and not secrets.compare_digest(sent, csrf_token().encode()):
        abort(400, "This form was open for too long, or did not come from here. Please try again.")


@functools.cache
def _random_hash() -> str:
    return generate_password_hash(secrets.token_hex())
