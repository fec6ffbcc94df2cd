"""A minimal app with Flask-CronJobs, as `benchmarks.peers.programs.ours` runs it."""

from __future__ import annotations

import os

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs

from ..program import calls_of_environment

url = os.environ["PEERS_URL"]
driver = "postgresql+psycopg:" if url.startswith("postgresql:") else "sqlite:///"

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = driver + url.removeprefix("postgresql:")
db = SQLAlchemy(app)
jobs = CronJobs(app)
note = calls_of_environment().note


@jobs.task(schedule="0 7 1 1 *")
def yearly() -> None:
    """Be a definition that is hardly ever due."""


@jobs.task
def noop(number: int) -> None:
    """Note the call."""
    note(number)
