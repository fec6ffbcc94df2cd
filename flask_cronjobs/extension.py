"""`CronJobs`, the extension object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from flask import Flask
from sqlalchemy import Engine, MetaData
from sqlalchemy.orm import scoped_session

from .config import Settings, read_settings
from .core.app_state import EXTENSION, GROUP, Actor, Authorize, State, state_of
from .core.tasks.options import SCHEDULE_OPTIONS, AroundHook, EnqueueOptions, TaskOptions
from .core.tasks.registry import Declaration, Registry, name_of
from .core.tasks.retry import Retry, RetryCallable
from .core.tasks.validation import (
    answering,
    as_around,
    check_access,
    check_task,
    check_unscheduled,
    given_by_position,
    task_options,
)
from .core.uncommitted import watch_commits
from .db.database import Database, database_of
from .db.engines import remember_app
from .db.transactions import begin_before_savepoints, end_interrupted_transactions
from .errors import SetupError
from .log import logger
from .methods import OperatorMethods, StepMethods
from .models.copies import add_tables, table_of_its_own
from .task import Task
from .types import Catchup, InDoubt, Order, Overlap, Replace, UniqueWhile

if TYPE_CHECKING:
    from .features.batches.batch import Batch
    from .models import JobRun

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", bound=AroundHook)


class CronJobs(OperatorMethods, StepMethods):
    """Scheduled and background work for a Flask app.

    :param app: the app; or call `init_app` later.
    :param authorize: called with ``"read"`` or ``"act"`` on every request to the pages; only
        ``True`` allows it. Without it the pages are closed, except in debug mode.
    :param actor: returns the name of the user who acts on the pages, for the log.
    :param session: for SQLAlchemy alone, without one of its extensions: the app's sessions, which
        `enqueue` joins. "``db.session``" in these texts means it.
    :param engine: with *session*: the engine of the job tables.
    :param metadata: of the app's models, so that ``create_all()`` and Alembic see the job tables.
        Flask-SQLAlchemy has its own; for the others, without it, the tables are made by
        ``flask jobs admin init``.

    Tasks belong to the instance. Everything else belongs to each app that it is initialized on.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        authorize: Authorize | None = None,
        actor: Actor | None = None,
        session: scoped_session[Any] | None = None,
        engine: Engine | None = None,
        metadata: MetaData | None = None,
    ) -> None:
        self._registry = Registry()
        self._authorize, self._actor = authorize, actor
        self._session, self._engine, self._metadata = session, engine, metadata
        if app is not None:
            self.init_app(app)

    def init_app(
        self,
        app: Flask,
        *,
        authorize: Authorize | None = None,
        actor: Actor | None = None,
        session: scoped_session[Any] | None = None,
        engine: Engine | None = None,
        metadata: MetaData | None = None,
    ) -> None:
        """Initialize the extension on *app*, after its `SQLAlchemy`.

        1. Read ``CRONJOBS_*``. 2. Copy the job tables into the app's metadata. 3. Add the commands
        and the pages.

        The parameters are as for the class, for this app.

        :raises SetupError: the app's database is not known, is another than PostgreSQL or SQLite,
            or is reached by a driver that we do not work with; this extension is initialized on the
            app already; or a parameter is not what it should be.
        :raises ConfigError: a ``CRONJOBS_*`` value is invalid.
        """
        if EXTENSION in app.extensions:
            raise SetupError(
                f"Flask-CronJobs is initialized on the app {app.name!r} already. Remove the second "
                "init_app(app); note that CronJobs(app) calls it."
            )
        settings = read_settings(app.config)
        authorize, actor = _first(authorize, self._authorize), _first(actor, self._actor)
        check_access(authorize, actor)
        db = database_of(
            app,
            _first(session, self._session),
            _first(engine, self._engine),
            _first(metadata, self._metadata),
        )
        _check_names(app, db)
        state = State(app, db, settings, self._registry, authorize, actor)
        _refuse_translation(state.engine)
        remember_app(state.engine, app, bool(db.metadata))
        for tables in db.metadata:
            add_tables(tables, state.engine.dialect.name)
        app.extensions[EXTENSION] = state
        watch_commits(state)
        with app.app_context():
            begin_before_savepoints(db.engine)
            for each in db.engines:  # A handler may use any of them.
                end_interrupted_transactions(each)
        _add_commands_and_pages(app, settings)

    @overload
    def task(self, func: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        func: None = None,
        /,
        *,
        name: str | None = None,
        schedule: str | None = None,
        timezone: str | None = None,
        payload: Mapping[str, object] | None = None,
        queue: str = "default",
        priority: int = 0,
        retry: Retry | RetryCallable | int | bool | None = None,
        timeout: float | timedelta | None = None,
        catchup: Catchup = "latest",
        overlap: Overlap = "skip",
        ping: str | None = None,
        concurrency: int | None = None,
        concurrency_key: str | None = None,
        atomic: bool = False,
        async_at_once: int | None = None,
        around: AroundHook | None = None,
        keep_output: bool | None = None,
        order: Order | None = None,
        unique: str | None = None,
        unique_while: UniqueWhile | None = None,
        rate: str | None = None,
        rate_key: str | None = None,
        burst: int | None = None,
        label: str | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    @answering({"name", "schedule", *SCHEDULE_OPTIONS, *TaskOptions._fields}, "task")
    def task(self, func: Any = None, /, **options: Any) -> Any:
        """Make a task of a function; bare, or with keywords.

        :param name: the task's name in the table; default: the function's.
        :param schedule: cron text, or an alias such as ``@daily``; see `Schedule`.
        :param timezone: the schedule's IANA zone; default ``CRONJOBS_TIMEZONE``.
        :param payload: the keyword arguments of scheduled runs.
        :param queue: which ``--queue`` its runs belong to.
        :param priority: higher is claimed first.
        :param retry: a `Retry`, a number of attempts, ``False`` for one, or a callable of attempt
            and exception that returns seconds, or None to give up.
        :param timeout: seconds that an attempt may take, at most 30 days; with None, the default,
            ``CRONJOBS_TIMEOUT``. No attempt is without a timeout.
        :param catchup: which slots to run that no tick saw in time: ``"latest"``, ``"all"`` or
            ``"none"``. The others are recorded as skipped.
        :param overlap: ``"skip"`` a slot while the definition's earlier run is not finished, or
            ``"allow"`` it.
        :param ping: a URL of a monitor, fetched with ``/start`` when an attempt begins, as it is
            when a run has succeeded, and with ``/fail`` when a run ended otherwise.
        :param concurrency: how many runs of a concurrency key may run at once, on all hosts.
        :param concurrency_key: a format, filled in from the payload, such as ``"user:{user_id}"``;
            default: one key for the whole task.
        :param atomic: commit the handler's ``db.session`` work and the run's success together.
        :param async_at_once: how many runs of an ``async def`` handler one process works on at
            once, at most; default ``CRONJOBS_ASYNC_AT_ONCE``, which is the limit of all together.
        :param around: what the handler is called inside of; see `around`.
        :param keep_output: keep the last 64 kB of what the handler prints and logs; default
            ``CRONJOBS_KEEP_OUTPUT``.
        :param order: ``"strict"``: execute the runs of a concurrency key one after the other, in
            the order of their ids. The next waits until the one before has ended, also while that
            waits for a retry. It needs ``concurrency_key``.
        :param unique: the idempotency key of runs that are enqueued without one: a format, filled
            in from the payload, such as ``"import:{shop_id}"``. Runs of schedules have none.
        :param unique_while: for how long a run has its key, unless a call says; see `Task.using`.
            By default, a key that *unique* makes is held while its run is ``"pending"``.
        :param rate: how many attempts of a rate key may begin in which time, on all hosts, such as
            ``"100/minute"``, ``"5/s"`` or ``"20/10s"``.
        :param rate_key: a format, filled in from the payload, such as ``"mail:{account_id}"``;
            default: one key for the whole task. Tasks with the same one share its rate.
        :param burst: how many attempts may begin at once after a rest, from 1, the default.
        :param label: what or whom a run is for: a format, filled in from the payload, such as
            ``"invoice {invoice_id}"``, which lists show. What ``CRONJOBS_REDACT`` names is hidden.
        :returns: the `Task`.
        :raises TaskError: an option is invalid, or the name is taken.
        :raises ScheduleError: the schedule or zone cannot be read.
        :raises TypeError: the handler does not take *payload*.
        :raises PayloadError: *payload* is not plain JSON.
        """
        name, cron = options.pop("name", None), options.pop("schedule", None)
        of_schedule = {each: options.pop(each) for each in SCHEDULE_OPTIONS if each in options}
        of_task = task_options(**options)

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            made = self._make(function, name, of_task)
            if cron is None:
                check_unscheduled(made.name, of_schedule)
            else:
                made.schedule(cron, name=made.name, **of_schedule)
            return made

        return register if func is None else register(func)

    def around(self, hook: H) -> H:
        """Call the handlers of all tasks inside of *hook*: a decorator.

        :param hook: takes the run, a `CurrentRun`, and has one ``yield``, at which the handler is
            called; or returns a context manager. Of several, the first is the outermost; one that
            a task has by its ``around=`` is the innermost.
        :returns: *hook* itself.
        :raises TaskError: *hook* is no function, or is asynchronous.

        It is called in the handler's thread and app context, at each attempt, and its time counts
        towards the timeout. What it raises ends the attempt like an error of the handler's. It sees
        the handler's errors, and may raise others instead, but cannot swallow them. With
        ``atomic=True`` it is left before the commit.
        """
        self._registry.around.append(as_around(hook))
        return hook

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks, by name."""
        return cast("Mapping[str, Task[..., Any]]", self._registry.tasks)

    @property
    def declarations(self) -> Mapping[str, Declaration]:
        """The definitions that code declares, by name."""
        return self._registry.declarations

    def get(self, name: str) -> Task[..., Any]:
        """Return the task called *name*.

        :returns: the `Task` that `task` made.
        :raises UnknownTask: there is none.
        """
        return cast("Task[..., Any]", self._registry.get(name))

    @answering({"name", "payload", *EnqueueOptions._fields}, "using")
    def enqueue(
        self,
        name: str,
        payload: Mapping[str, object] | None = None,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        idempotency_key: str | None = None,
        unique_while: UniqueWhile | None = None,
        replace: Replace | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        commit: bool | None = None,
    ) -> JobRun:
        """Enqueue a run of a task by its name, in ``db.session``: your commit makes it exist.

        :param name: the task's name.
        :param payload: the handler's keyword arguments.
        :param run_at: not before this time (aware).
        :param delay: not before so many seconds from now, by the database's clock.
        :param idempotency_key: at most one run has it, for as long as *unique_while* says.
        :param unique_while: as long as that run's row is ``"kept"`` (the default), is
            ``"pending"`` (has not ended), or is ``"waiting"`` (has not begun).
        :param replace: give the run that waits with this key the new ``"payload"``, the new time
            (``"run_at"``), or both (True). One that has begun stays, and a new run is made.
        :param queue: the queue, instead of the task's.
        :param priority: instead of the task's; higher is claimed first.
        :param max_attempts: instead of the retry policy's.
        :param commit: commit ``db.session`` at once.
        :returns: the run; with an idempotency key that exists, the run that has it. Its ``is_new``
            tells which.
        :raises KeyConflict: the idempotency key belongs to a run of another task.
        :raises UnknownTask: no task has that name.
        :raises TaskError: an option is invalid.
        :raises TypeError: the handler does not take *payload*.
        :raises PayloadError: *payload* is not plain JSON.
        :raises TablesMissing: the job tables do not exist.
        """
        given = locals()
        options = {option: given[option] for option in EnqueueOptions._fields}
        task = self.get(name)
        return task.using(**options).enqueue(**task.payload_from(payload or {}))

    def batch(
        self,
        key: str,
        *,
        then: Task[..., Any] | str | None = None,
        then_payload: Mapping[str, object] | None = None,
    ) -> Batch:
        """Fill a batch: a context manager, inside of which each enqueued run joins the batch.

        :param key: the batch's name, unique as long as its row is kept; at most 500 characters.
        :param then: the task (or its name) of which one run is enqueued when the last run has
            ended: succeeded, dead, cancelled or skipped. ``current_run.batch`` has the counts.
        :param then_payload: the keyword arguments of that run.
        :returns: the `Batch`. The end of its block closes it. To enter a closed batch raises
            `BatchClosed`.
        :raises UnknownTask: no task has the name *then*.
        :raises TaskError: an option is invalid.
        :raises TypeError: the handler of *then* does not take *then_payload*.
        :raises PayloadError: *then_payload* is not plain JSON.

        It works in ``db.session``: the batch and its runs exist with your commit, or not at all.
        """
        from .features.batches.batch import new_batch

        task = then if then is None or isinstance(then, Task) else self.get(name_of(then))
        return new_batch(state_of(), key, task, then_payload)

    @given_by_position
    def once(
        self,
        key: str,
        func: Callable[..., R],
        /,
        *args: Any,
        in_doubt: InDoubt = "skip",
        **kwargs: Any,
    ) -> R | None:
        """Call *func* unless the effect *key* is done; return its result, recorded or new.

        :param key: what the effect is, such as ``"charge:invoice:812"``; never the attempt.
        :param in_doubt: what to do if a process died in the middle of it: ``"skip"`` (logged, and
            shown to the operator; returns None), ``"redo"``, or ``"raise"`` `EffectInDoubt`.
        :param func: does the effect; called with *args* and *kwargs*.
        :returns: what *func* returned, as JSON gives it back: a tuple as a list. What is no JSON or
            too large is not kept: a warning is logged, the first call returns it as it is, and
            later ones return None.
        :raises EffectInDoubt: as *in_doubt* says.
        :raises TaskError: *key* or *in_doubt* is not valid.
        :raises TypeError: *func* cannot be called, perhaps since it is a result.
        :raises SetupError: it is called inside itself; or, on SQLite, ``db.session`` holds the
            write lock.

        If *func* raises, the mark is removed, so that a retry does it. On SQLite this rolls back
        what *func* wrote in ``db.session`` and did not commit. Of two callers of one key, one calls
        and the other waits for the result. Outside a run, an effect that takes longer than
        ``CRONJOBS_LEASE`` may be done by another caller too; an error in the log says so.
        """
        from .features.once.once import once

        return once(state_of(), key, func, args, kwargs, in_doubt)

    def _make(
        self, func: Callable[..., Any], name: str | None, options: TaskOptions
    ) -> Task[..., Any]:
        task_name = str(name or getattr(func, "__name__", ""))
        check_task(func, task_name, options)
        task = Task(func, task_name, options, self._registry)
        self._registry.add(task)
        return task


def _first(given: T | None, otherwise: T | None) -> T | None:
    return otherwise if given is None else given


def _add_commands_and_pages(app: Flask, settings: Settings) -> None:
    from .cli import add_commands

    add_commands(app, settings.work_in_debug)
    if settings.url_prefix is not None:
        from .web import create_blueprint

        if app.url_map.host_matching:
            logger.warning(
                "The app has host_matching=True, where routes need a host, and the job pages have "
                "none: they and their /health answer 404. Serve them by an app without "
                "host_matching, on the same database, or set CRONJOBS_URL_PREFIX = None."
            )
        app.register_blueprint(create_blueprint(), url_prefix=settings.url_prefix)


def _refuse_translation(engine: Engine) -> None:
    """Refuse an engine that puts tables without a schema into one: our own SQL would miss them."""
    schemas: dict[str | None, str] = engine.get_execution_options().get("schema_translate_map", {})
    if schemas.get(None):
        raise SetupError(
            f"The engine's schema_translate_map puts tables without a schema into {schemas[None]!r}"
            ", but not those that SQL names as text. To keep all tables there, set "
            f"connect_args={{'options': '-csearch_path={schemas[None]}'}} instead."
        )


def _check_names(app: Flask, db: Database) -> None:
    """Refuse an app that has a command or a table of its own by one of our names."""
    if GROUP in app.cli.commands:
        raise SetupError(
            f"The app {app.name!r} has a command or a group {GROUP!r} already, perhaps a "
            "blueprint's, which `flask jobs tick` would hide. Rename it; for a blueprint: "
            "Blueprint(…, cli_group='other')."
        )
    for name in filter(None, map(table_of_its_own, db.metadata)):
        raise SetupError(
            f"The app has a table {name!r} of its own, which Flask-CronJobs keeps its rows in. "
            "Rename it: give the class another __tablename__, and make a migration."
        )
