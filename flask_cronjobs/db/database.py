"""How the app reaches its database: Flask-SQLAlchemy, Flask-SQLAlchemy-Lite or SQLAlchemy alone.

Each of them is wrapped as a `Database`, so the rest of the package does not know which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

from flask import Flask
from flask.ctx import AppContext
from sqlalchemy import Connection, Engine, MetaData
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from ..errors import SetupError


class Database(ABC):
    """The engines and sessions of one app. Each method needs a context of this app.

    :ivar metadata: the metadata to which copies of the job tables are added.
    :ivar side_by_side: whether each app context has its own session, and can end while an event
        loop is running.
    :ivar ends_with_context: whether a session ends with its app context, unless a teardown raises.
    """

    metadata: Collection[MetaData]
    side_by_side: bool = True
    ends_with_context: bool = True

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine of the job tables."""

    @property
    @abstractmethod
    def engines(self) -> Collection[Engine]:
        """All engines that the app's sessions may use."""

    @property
    @abstractmethod
    def sessionmaker(self) -> sessionmaker[Session]:
        """The sessionmaker of the app's sessions."""

    @abstractmethod
    def session(self) -> Session:
        """Return the session of the current context."""

    @abstractmethod
    def open_session(self) -> Session | None:
        """Return the session of the current context, if it has been used."""

    @abstractmethod
    def close_session(self, context: AppContext) -> None:
        """Close the session of *context*, which has ended, if its teardown left it open."""

    @property
    def bind(self) -> Engine | Connection:
        """The engine that the session uses; in some tests, one connection."""
        try:
            return self.session().get_bind()
        except UnboundExecutionError:
            return self.engine


class _Scoped(Database):
    """A database whose sessions come from a `scoped_session`.

    :param holder: the object whose attribute ``session`` is the `scoped_session`; a test may
        replace the attribute.
    """

    def __init__(self, holder: Any) -> None:
        self._db = holder

    @property
    def sessionmaker(self) -> sessionmaker[Session]:
        """The factory of the scoped session."""
        return cast("sessionmaker[Session]", self._db.session.session_factory)

    def session(self) -> Session:
        """Return the session of the current scope."""
        return cast("Session", self._db.session())

    def open_session(self) -> Session | None:
        """Return the session of the current scope, if it has been used."""
        return self.session() if self._db.session.registry.has() else None

    def close_session(self, context: AppContext) -> None:
        """Close the session of the context, or of the context's thread.

        A context's session is registered under the context's id, which the next one may reuse.
        """
        if not self.side_by_side:
            self._db.session.remove()
            return
        sessions: Any = getattr(self._db.session.registry, "registry", None)
        # A test may have replaced db.session with one that is stored elsewhere.
        session = sessions.pop(id(context), None) if hasattr(sessions, "pop") else None
        if session is not None:
            session.close()


class FlaskSQLAlchemy(_Scoped):
    """Flask-SQLAlchemy: ``db.session`` is a `scoped_session`, and engines have bind keys.

    :param db: the extension. Tests may replace its session and engines at any time.
    """

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.metadata: Collection[MetaData] = [db.metadata]

    @property
    def engine(self) -> Engine:
        """The default engine."""
        return cast("Engine", self._db.engine.engine)  # A test may have put a connection there.

    @property
    def engines(self) -> Collection[Engine]:
        """The engines of all binds."""
        return cast("Collection[Engine]", self._db.engines.values())


class FlaskSQLAlchemyLite(Database):
    """Flask-SQLAlchemy-Lite: ``db.session`` is a `Session`, and engines have names.

    :param db: the extension, which does not know the app's models.
    :param metadata: the metadata of the app's models; None to copy no job tables into it.
    """

    # It closes async sessions at the end of each context, in a new event loop.
    side_by_side: bool = False

    def __init__(self, db: Any, metadata: MetaData | None) -> None:
        self._db = db
        self.metadata: Collection[MetaData] = [] if metadata is None else [metadata]

    @property
    def engine(self) -> Engine:
        """The engine ``"default"``."""
        return cast("Engine", self._db.engine)

    @property
    def engines(self) -> Collection[Engine]:
        """The engines of all names."""
        return cast("Collection[Engine]", self._db.engines.values())

    @property
    def sessionmaker(self) -> sessionmaker[Session]:
        """The factory of all sessions, whatever their names."""
        return cast("sessionmaker[Session]", self._db.sessionmaker)

    def session(self) -> Session:
        """Return ``db.session``."""
        return cast("Session", self._db.session)

    def open_session(self) -> Session | None:
        """Return ``db.session``, if it has been used."""
        from flask import g

        return self.session() if "default" in g.get(_LITE_SESSIONS, {}) else None

    def close_session(self, context: AppContext) -> None:
        """Close all sessions of the context."""
        for session in context.g.pop(_LITE_SESSIONS, {}).values():
            session.close()


_LITE_SESSIONS = "_sqlalchemy_sessions"


class PlainSQLAlchemy(_Scoped):
    """SQLAlchemy without an extension, from what the app passes to `CronJobs`.

    :param app: removes the session at the end of each app context, if that is the session's scope.
    :raises SetupError: the session or the engine is missing, or has another type.
    """

    def __init__(
        self, app: Flask, session: object, engine: object, metadata: MetaData | None
    ) -> None:
        if not isinstance(session, scoped_session):
            raise SetupError(f"session= is {_named(session)}. {_GIVE_SESSION}")
        if not isinstance(engine, Engine):
            raise SetupError(f"engine= is {_named(engine)}. {_GIVE_ENGINE}")
        scoped = cast("scoped_session[Session]", session)
        if not isinstance(cast("object", scoped.session_factory), sessionmaker):
            raise SetupError(f"session= was made without a sessionmaker. {_GIVE_SESSION}")
        super().__init__(SimpleNamespace(session=scoped))
        if self.sessionmaker.kw["bind"] is None:  # It may bind only the app's own models.
            self.sessionmaker.configure(bind=engine)
        self._engine = engine
        self.metadata: Collection[MetaData] = [] if metadata is None else [metadata]
        self.side_by_side: bool = _is_scoped_to_context(app, scoped)
        self.ends_with_context: bool = self.side_by_side
        if self.side_by_side:
            app.teardown_appcontext(self._remove)

    @property
    def engine(self) -> Engine:
        """The engine that the app has passed."""
        return self._engine

    @property
    def engines(self) -> Collection[Engine]:
        """The app's engine, and those to which the session binds single models."""
        binds: dict[Any, Engine | Connection] = self.sessionmaker.kw.get("binds") or {}
        return {self._engine, *(bind.engine for bind in binds.values())}

    def _remove(self, error: BaseException | None) -> None:
        self._db.session.remove()


_GIVE_SESSION = (
    "Give a scoped_session, as in: CronJobs(app, session=scoped_session(sessionmaker(engine)), "
    "engine=engine, metadata=Base.metadata)."
)
_GIVE_ENGINE = (
    "Give the engine of the database in which the job tables live, together with session=: "
    "CronJobs(app, session=…, engine=engine, metadata=Base.metadata)."
)


def _named(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _is_scoped_to_context(app: Flask, session: scoped_session[Session]) -> bool:
    """Return whether the scope of *session* is the app context; by default it is the thread."""
    scope: Callable[[], object] | None = getattr(session.registry, "scopefunc", None)
    if scope is None:
        return False
    with app.app_context():
        outer = scope()
        with app.app_context():
            return scope() != outer


def database_of(app: Flask, session: object, engine: object, metadata: MetaData | None) -> Database:
    """Return the `Database` of *app*.

    :param session: a `scoped_session` if the app uses SQLAlchemy alone, together with *engine*.
    :param metadata: the metadata of the app's models; Flask-SQLAlchemy has its own.
    :raises SetupError: the app has no database, or the arguments contradict each other.
    """
    if metadata is not None and not isinstance(metadata, MetaData):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SetupError(f"metadata= is {_named(metadata)}. Give that of your models' base class.")
    if session is not None or engine is not None:
        return PlainSQLAlchemy(app, session, engine, metadata)
    db = app.extensions.get("sqlalchemy")
    if db is None:
        raise SetupError(
            f"The app {app.name!r} has no database yet. Call init_app(app) of Flask-SQLAlchemy "
            "or of Flask-SQLAlchemy-Lite before jobs.init_app(app); for SQLAlchemy alone, use "
            "CronJobs(app, session=…, engine=…, metadata=…)."
        )
    with app.app_context():
        if hasattr(db, "metadata"):
            return _of_flask_sqlalchemy(db, metadata)
        if "default" not in db.engines:
            raise SetupError(_no_default("SQLALCHEMY_ENGINES = {'default': …}"))
    return FlaskSQLAlchemyLite(db, metadata)


def _of_flask_sqlalchemy(db: Any, metadata: MetaData | None) -> FlaskSQLAlchemy:
    if None not in db.engines:
        raise SetupError(_no_default("SQLALCHEMY_DATABASE_URI"))
    if metadata not in (None, db.metadata):
        raise SetupError("metadata= differs from db.metadata. Leave it out: db.metadata is used.")
    return FlaskSQLAlchemy(db)


def _no_default(setting: str) -> str:
    return (
        f"The app has no default database. Set {setting}: the job tables live there, since enqueue "
        "joins db.session."
    )
