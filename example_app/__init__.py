"""Tally, a small invoicing service: the example app of Flask-CronJobs.

The factory is here; `tasks` is what the example is about.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from flask import Flask

from . import auth, cli, tasks
from .extensions import db, jobs
from .pages import pages

__all__ = ["create_app", "db", "jobs", "tasks"]


def create_app(config: Mapping[str, object] | None = None) -> Flask:
    """Create the app.

    :param config: overrides the values from the environment.
    """
    app = Flask(__name__)
    app.config.from_mapping(
        # Without a fixed key, every restart logs everybody out.
        SECRET_KEY=os.environ.get("SECRET_KEY") or secrets.token_hex(),
        SESSION_COOKIE_SAMESITE="Lax",
        SQLALCHEMY_DATABASE_URI=database_url(os.environ.get("DATABASE_URL", "")),
        MAIL_HOST=os.environ.get("MAIL_HOST", "127.0.0.1"),
        MAIL_PORT=int(os.environ.get("MAIL_PORT", "8025")),
        MAIL_FROM=os.environ.get("MAIL_FROM", "Tally <tally@example.com>"),
        CARD_BOOKS=str(Path(app.instance_path) / "cards.txt"),
        CARD_PAUSE=0.0,  # Seconds that the card provider asks to wait after a charge.
    )
    app.config.from_prefixed_env()  # FLASK_CARD_PAUSE, FLASK_CRONJOBS_LEASE, …
    broker = os.environ.get("CELERY_BROKER_URL")
    if broker:  # `make demo-celery`: Celery's workers execute what ticks find.
        app.config["CRONJOBS_EXECUTORS"] = {"default": "celery"}
    app.config.from_mapping(config)
    db.init_app(app)
    # Nobody may open the job pages unless authorize allows it. Here it allows logged-in staff.
    jobs.init_app(app, authorize=auth.may_use_job_pages, actor=auth.who_acts)
    app.register_blueprint(pages)
    app.cli.add_command(cli.init_db)
    app.cli.add_command(cli.add_staff)
    if broker:
        from celery import Celery

        from flask_cronjobs.executors.celery import init

        init(Celery(app.name, broker=broker), app)
    return app


def database_url(url: str) -> str:
    """Return *url* with this app's driver; if it is empty, SQLite in the instance folder."""
    scheme, _, rest = url.partition("://")
    if scheme in ("postgres", "postgresql"):
        return f"postgresql+psycopg://{rest}"
    return url or "sqlite:///example.sqlite"
