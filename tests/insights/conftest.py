"""The extension, with its pages open to everybody."""

from __future__ import annotations

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from tests.tables import make_tables


@pytest.fixture
def jobs(app: Flask, db: SQLAlchemy) -> CronJobs:
    """The extension on `app`, with its tables, and with its pages open to everybody."""
    jobs = CronJobs(app, authorize=lambda action: True)
    make_tables(app, db)
    return jobs
