"""Who is logged in, and who may use the job pages."""

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
    """What `CronJobs` asks on every request to /jobs: staff may read and act, nobody else.

    :param action: ``"read"`` or ``"act"``.
    """
    user = current_user()
    if user is None and action == "read":
        abort(redirect(url_for("pages.log_in", next=request.path)))
    return user is not None and user.is_staff


def who_acts() -> str:
    """The name that the log of the job pages shows."""
    user = current_user()
    return user.email if user is not None else "nobody"


def current_user() -> User | None:
    """The user whose session the browser holds, looked up once a request."""
    if "user" not in g:
        now = datetime.now(timezone.utc)
        query = select(User).join(Session, Session.user_id == User.id)
        held = query.where(Session.id == session.get("id"), Session.expires_at > now)
        g.user = db.session.scalars(held).one_or_none()
    user: User | None = g.user
    return user


def find_user(email: str) -> User | None:
    """The user who has *email*."""
    return db.session.scalars(select(User).where(User.email == email)).one_or_none()


def check_password(email: str, password: str) -> User | None:
    """The user who has *email*, if that is their password."""
    user = find_user(email)
    # An unknown address takes as long as a wrong password, so that nobody learns who is here.
    known = check_password_hash(user.password_hash if user else _nobody(), password)
    return user if known else None


def start_session(user: User) -> None:
    """Log *user* in; joins ``db.session``."""
    expires_at = datetime.now(timezone.utc) + SESSION_AGE
    row = Session(user_id=user.id, expires_at=expires_at)
    db.session.add(row)
    db.session.flush()
    session.clear()
    session["id"] = row.id
    g.user = user


def end_session() -> None:
    """Log out; joins ``db.session``."""
    db.session.execute(delete(Session).where(Session.id == session.get("id")))
    session.clear()
    g.user = None


def csrf_token() -> str:
    """What each form of this browser must send with it."""
    token: str = session.setdefault("csrf", secrets.token_urlsafe())
    return token


def check_csrf() -> None:
    """End a request that changes something unless one of our forms sent it."""
    sent = request.form.get("csrf", "").encode()
    if request.method == "POST" and not secrets.compare_digest(sent, csrf_token().encode()):
        abort(400, "This form was open for too long, or did not come from here. Please try again.")


@functools.cache
def _nobody() -> str:
    return generate_password_hash(secrets.token_hex())
