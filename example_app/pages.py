"""The pages: sign up, log in, the user's invoices, and support."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from urllib.parse import urlsplit
from uuid import uuid4
from zoneinfo import ZoneInfo, available_timezones

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from werkzeug.exceptions import HTTPException
from werkzeug.security import generate_password_hash

from flask_cronjobs.models import JobRun

from . import auth
from .extensions import db
from .forms import FormError, ReportRequest, SignUp
from .letters import dollars
from .models import Entry, Figure, Invoice, User
from .tasks import OFFICE, book, enqueue_weekly_report, send_weekly_report, send_welcome

pages = Blueprint("pages", __name__)
pages.before_request(auth.check_csrf)
pages.add_app_template_filter(dollars)


@pages.context_processor
def shared() -> dict[str, object]:
    """Return the variables of every template."""
    return {"user": auth.current_user(), "csrf_token": auth.csrf_token}


@pages.get("/")
def home() -> str:
    """Show the front page, with the user's invoices if they are logged in."""
    user = auth.current_user()
    mine = select(Invoice).where(Invoice.user_id == (user.id if user else None))
    return render_template(
        "home.html",
        figures=db.session.scalars(select(Figure).order_by(Figure.name)).all(),
        invoices=db.session.scalars(mine.order_by(Invoice.due_on.desc()).limit(50)).all(),
        entries=db.session.scalars(
            select(Entry)
            .where(Entry.user_id == (user.id if user else None))
            .order_by(Entry.id.desc())
            .limit(20)
        ).all(),
    )


@pages.post("/invoices/<int:invoice_id>/paid")
def mark_paid(invoice_id: int) -> ResponseReturnValue:
    """Note that an invoice was paid, and enqueue its line of the ledger in the same transaction.

    The update locks the row: of two clicks at once, the second finds the invoice paid.
    """
    user = auth.current_user()
    if user is None:
        return redirect(url_for(".log_in"))
    mine = (Invoice.id == invoice_id, Invoice.user_id == user.id, Invoice.paid_on.is_(None))
    today = datetime.now(ZoneInfo(user.timezone)).date()
    paid = update(Invoice).where(*mine).values(paid_on=today).returning(Invoice)
    invoice = db.session.scalars(paid).one_or_none()
    if invoice is None:
        abort(404, "There is no such open invoice.")
    book.enqueue(user.id, f"Invoice {invoice.number}", invoice.cents)
    db.session.commit()
    flash("Your ledger will show the payment within a minute.")
    return redirect(url_for(".home"))


@pages.route("/signup", methods=["GET", "POST"])
def sign_up() -> ResponseReturnValue:
    """Sign up."""
    if request.method == "GET":
        return _sign_up_page({"timezone": OFFICE}, {})
    try:
        add_user(SignUp.read(request.form))
    except FormError as error:
        return _sign_up_page(request.form, error.errors), 422
    flash("Welcome! An email is on its way to you.")
    return redirect(url_for(".home"))


def add_user(form: SignUp) -> User:
    """Add a user, log them in, and enqueue their emails, all in one transaction.

    :raises FormError: another user signed up with the address at the same moment.
    """
    user = User(
        email=form.email,
        name=form.name,
        password_hash=generate_password_hash(form.password),
        timezone=form.timezone,
    )
    db.session.add(user)
    try:
        db.session.flush()  # Gives the user an id.
    except IntegrityError:
        db.session.rollback()
        raise FormError({"email": "Somebody has already signed up with this address."}) from None
    send_welcome.enqueue(user.id)
    enqueue_weekly_report(user)
    auth.start_session(user)
    db.session.commit()
    return user


@pages.route("/login", methods=["GET", "POST"])
def log_in() -> ResponseReturnValue:
    """Log in, and return to the page that asked for it."""
    if request.method == "GET":
        return render_template("log_in.html", errors={})
    email = request.form.get("email", "").strip().lower()
    user = auth.check_password(email, request.form.get("password", ""))
    if user is None:
        errors = {"password": "The address or the password is wrong."}
        return render_template("log_in.html", errors=errors), 422
    auth.start_session(user)
    db.session.commit()
    return redirect(_own_path(request.args.get("next", "")))


@pages.post("/logout")
def log_out() -> ResponseReturnValue:
    """Log out."""
    auth.end_session()
    db.session.commit()
    return redirect(url_for(".home"))


@pages.route("/support", methods=["GET", "POST"])
def support() -> ResponseReturnValue:
    """Let staff send a user a report on the chosen days, now."""
    user = auth.current_user()
    if user is None:
        return redirect(url_for(".log_in", next=request.path))
    if not user.is_staff:
        abort(403, "This page is for the people who work at Tally.")
    if request.method == "GET":
        yesterday = datetime.now(ZoneInfo(OFFICE)).date() - timedelta(days=1)
        week = {"date_from": yesterday - timedelta(days=6), "date_to": yesterday}
        return _support_page(week, {})
    try:
        report = ReportRequest.read(request.form)
    except FormError as error:
        return _support_page(request.form, error.errors), 422
    run = send_report_now(report)
    flash(f"The report for {report.user.email} will be sent within a minute (run {run.id}).")
    return redirect(url_for(".support"))


def send_report_now(report: ReportRequest) -> JobRun:
    """Enqueue a report, due now, with a higher priority than scheduled runs."""
    key = f"support_report:{report.request_id}"
    run = send_weekly_report.using(idempotency_key=key, priority=10).enqueue(
        report.user.id, report.date_from.isoformat(), report.date_to.isoformat()
    )
    db.session.commit()
    return run


@pages.app_errorhandler(HTTPException)
def show_error(error: HTTPException) -> ResponseReturnValue:
    """Show any error as one of our pages."""
    if error.response is not None:
        return error.response
    return render_template("error.html", error=error), error.code or 500


def _sign_up_page(values: Mapping[str, object], errors: Mapping[str, str]) -> str:
    zones = sorted(zone for zone in available_timezones() if "/" in zone)
    return render_template("sign_up.html", values=values, errors=errors, zones=zones)


def _support_page(values: Mapping[str, object], errors: Mapping[str, str]) -> str:
    latest = select(JobRun).where(JobRun.job_type == send_weekly_report.name)
    return render_template(
        "support.html",
        values=values,
        errors=errors,
        runs=db.session.scalars(latest.order_by(JobRun.id.desc()).limit(10)).all(),
        request_id=uuid4().hex,
    )


def _own_path(path: str) -> str:
    """Return *path* if it is on this site, otherwise the front page."""
    parts = urlsplit(path.replace("\\", "/"))
    ours = path.startswith("/") and not (parts.scheme or parts.netloc)
    return path if ours else url_for(".home")
