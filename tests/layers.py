"""The layers through which an app may reach its database, with Flask-SQLAlchemy's interface.

The same tests run with each of them: ``pytest --layer lite tests/api``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import sqlalchemy
from flask import Flask, g
from flask.globals import app_ctx
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, MetaData, create_engine
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session, sessionmaker


class FlaskSQLAlchemy(SQLAlchemy):
    """Flask-SQLAlchemy itself.

    :ivar given: the arguments of `CronJobs` besides the app.
    """

    given: ClassVar[dict[str, Any]] = {}


class Psycopg2(FlaskSQLAlchemy):
    """Flask-SQLAlchemy with psycopg2."""

    def init_app(self, app: Flask) -> None:
        url = app.config["SQLALCHEMY_DATABASE_URI"]
        app.config["SQLALCHEMY_DATABASE_URI"] = url.replace("+psycopg:", "+psycopg2:")
        super().init_app(app)


class _Own:
    """The parts of Flask-SQLAlchemy's interface that the other layers lack."""

    engine: Any
    session: Any

    def __init__(self) -> None:
        class Model(DeclarativeBase):
            metadata = MetaData()

        self.Model = Model
        self.metadata = Model.metadata

    @property
    def engines(self) -> dict[None, Engine]:
        return {None: self.engine}

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlalchemy, name)

    def create_all(self) -> None:
        self.metadata.create_all(self.engine)

    def drop_all(self) -> None:
        self.metadata.drop_all(self.engine)


class _LiteSession(Session):
    """A session that tests may call and remove as if it were scoped."""

    def __call__(self) -> Session:
        return self

    def remove(self) -> None:
        self.close()
        g.pop("_sqlalchemy_sessions", None)


def lite_extension() -> Any:
    """Return the class of Flask-SQLAlchemy-Lite; skip the test where it is not installed.

    It needs a newer SQLAlchemy than the oldest that the package supports.
    """
    return pytest.importorskip("flask_sqlalchemy_lite").SQLAlchemy


class Lite(_Own):
    """Flask-SQLAlchemy-Lite."""

    def __init__(self) -> None:
        super().__init__()
        self.given = {"metadata": self.metadata}
        self._db = lite_extension()(session_options={"class_": _LiteSession})

    def init_app(self, app: Flask) -> None:
        options = app.config["SQLALCHEMY_ENGINE_OPTIONS"]
        engine = {"url": app.config["SQLALCHEMY_DATABASE_URI"], **options}
        app.config["SQLALCHEMY_ENGINES"] = {"default": engine}
        self._db.init_app(app)

    @property
    def session(self) -> Session:
        return self._db.session

    @property
    def engine(self) -> Engine:
        return self._db.engine


class Plain(_Own):
    """SQLAlchemy alone, with one session per app context."""

    def init_app(self, app: Flask) -> None:
        options = app.config["SQLALCHEMY_ENGINE_OPTIONS"]
        self.engine = create_engine(app.config["SQLALCHEMY_DATABASE_URI"], **options)
        self.session = scoped_session(
            sessionmaker(self.engine),
            scopefunc=lambda: id(app_ctx._get_current_object()),  # type: ignore[attr-defined]
        )
        self.given = {
            "session": self.session,
            "engine": self.engine,
            "metadata": self.metadata,
        }


LAYERS: dict[str, Any] = {
    "flask-sqlalchemy": FlaskSQLAlchemy,
    "psycopg2": Psycopg2,
    "lite": Lite,
    "plain": Plain,
}
