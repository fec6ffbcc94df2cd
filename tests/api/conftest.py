"""Tests of the public API run on SQLite; those marked `on_both` also run on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy


@pytest.fixture
def database_url(request: pytest.FixtureRequest, layer: str) -> str:
    """The URL of an empty database: on SQLite, unless a mark or a layer needs another."""
    usual = "postgresql" if layer == "psycopg2" else "sqlite"
    url: str = request.getfixturevalue(f"{getattr(request, 'param', usual)}_url")
    return url


@pytest.fixture
def another(tmp_path: Path) -> Iterator[tuple[Flask, SQLAlchemy]]:
    """A second app without the extension, on its own SQLite file."""
    app, db = Flask("other"), SQLAlchemy()
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'other.sqlite'}"
    db.init_app(app)
    yield app, db
    with app.app_context():
        db.engine.dispose()
