"""The job tables in an empty database: each test runs once with each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from tests.kit import Kit, begin_with_the_write_lock
from tests.tables import make_tables


@pytest.fixture
def jobs(app: Flask, db: SQLAlchemy) -> CronJobs:
    """The extension on `app`, its tables created, its pages open to all."""
    jobs = CronJobs(app, authorize=lambda action: True)
    make_tables(app, db)
    return jobs


@pytest.fixture
def kit(database_url: str) -> Iterator[Kit]:
    """The store, its tables created."""
    made = Kit.on(database_url)
    yield made
    made.close()


@pytest.fixture
def writers(kit: Kit) -> None:
    """Writers on SQLite begin with the write lock, as apps that write at once should."""
    begin_with_the_write_lock(kit)
