"""An app in each setup of a test's database that users have."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Connection, func, select
from sqlalchemy.orm import scoped_session, sessionmaker

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobEffect, JobRun
from tests.tables import copy_tables
from tests.testing.shop import Shop


@contextmanager
def plain(app: Flask, db: SQLAlchemy) -> Generator[None]:
    """Give each test its own database."""
    yield


@contextmanager
def rolled_back(db: SQLAlchemy) -> Generator[Connection]:
    """Roll back one transaction at the end, so that nothing is left."""
    engine = db.engine
    with engine.connect() as connection:
        transaction = connection.begin()
        yield connection
        db.session.remove()
        assert transaction.is_active
        transaction.rollback()
    with engine.connect() as connection:
        for model in (JobRun, JobEffect):
            assert connection.scalar(select(func.count()).select_from(model.__table__)) == 0


@contextmanager
def instead_of_the_engine(app: Flask, db: SQLAlchemy) -> Generator[None]:
    """Put one connection into ``db.engines``, as the recipe says."""
    with app.app_context():
        engines: Any = db.engines
        engine = engines[None]
        with rolled_back(db) as connection:
            engines[None] = connection
            yield
            engines[None] = engine


@contextmanager
def with_savepoints(app: Flask, db: SQLAlchemy) -> Generator[None]:
    """Give each session a savepoint as well."""
    with app.app_context():
        db.session.configure(join_transaction_mode="create_savepoint")
    with instead_of_the_engine(app, db):
        yield


@contextmanager
def another_session(app: Flask, db: SQLAlchemy) -> Generator[None]:
    """Replace ``db.session``, as the recipe says."""
    original = db.session
    with app.app_context(), rolled_back(db) as connection:
        factory = sessionmaker(bind=connection, join_transaction_mode="create_savepoint")
        db.session = scoped_session(factory)  # type: ignore[arg-type]
        yield
        db.session.remove()
        db.session = original


SETUPS: dict[str, tuple[str, Callable[[Flask, SQLAlchemy], Any]]] = {
    "sqlite-file": ("sqlite_url", plain),
    "sqlite-memory": ("", plain),
    "sqlite-engines": ("sqlite_url", instead_of_the_engine),
    "sqlite-savepoints": ("sqlite_url", with_savepoints),
    "sqlite-session": ("sqlite_url", another_session),
    "postgresql": ("postgresql_url", plain),
    "postgresql-engines": ("postgresql_url", instead_of_the_engine),
    "postgresql-savepoints": ("postgresql_url", with_savepoints),
    "postgresql-session": ("postgresql_url", another_session),
}
#: The setups that have only one connection.
SHARED = [name for name in SETUPS if name not in ("sqlite-file", "postgresql")]


#: The setups of tests about the recipes; other tests need one of each kind.
in_each_setup = pytest.mark.parametrize("shop", SETUPS, indirect=True)


@pytest.fixture(params=["sqlite-file", "sqlite-engines"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A shop, with an app context around the test."""
    fixture, recipe = SETUPS[request.param]
    app, db = Flask("shop"), SQLAlchemy()
    url = request.getfixturevalue(fixture) if fixture else "sqlite://"
    app.config.update(TESTING=True, SQLALCHEMY_DATABASE_URI=url)
    db.init_app(app)
    shop = Shop(app, db, CronJobs(app))
    copy_tables(url)
    with app.app_context():
        db.create_all()
    with recipe(app, db), app.app_context():
        yield shop
    with app.app_context():
        db.engine.dispose()
