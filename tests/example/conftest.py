"""Fixtures: the app with its mail server, and people's browsers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from example_app import create_app, sample
from example_app.extensions import db
from example_app.mailbox import Mailbox
from tests.example.tally import PASSWORD, Tally, submit
from tests.marks import REDIRECTED
from tests.tables import copy_tables


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as mailbox:
        yield mailbox


@pytest.fixture
def tally(database_url: str, mailbox: Mailbox) -> Iterator[Tally]:
    app = create_app(
        {"TESTING": True, "SQLALCHEMY_DATABASE_URI": database_url, "MAIL_PORT": mailbox.port}
    )
    copy_tables(database_url)
    with app.app_context():
        db.create_all()
    yield Tally(app)
    with app.app_context():
        db.engine.dispose()


@pytest.fixture
def client(tally: Tally) -> FlaskClient:
    """A browser without a login."""
    return tally.app.test_client()


@pytest.fixture
def staff(tally: Tally) -> FlaskClient:
    """The browser of a support person, with sample data in the database."""
    with tally.app.app_context():
        sample.add_sample(PASSWORD)
    client = tally.app.test_client()
    answer = submit(client, "/login", email=sample.STAFF, password=PASSWORD)
    assert answer.status_code in REDIRECTED
    return client
