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
from .db.engines import begin_before_savepoints, end_interrupted_transactions, remember_app
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

    :param app: the app. If you have an app factory, leave it out and call `init_app`.
    :param authorize: called with ``"read"`` or ``"act"`` on every request to the pages; only
        ``True`` allows it. Without it the pages are closed, except in debug mode.
    :param actor: returns the name of the user who acts on the pages, for the log.
    :param session: the app's scoped session, which `enqueue` joins. Give it only if you use
        SQLAlchemy without an extension. The documentation calls it ``db.session``.
    :param engine: the engine of the job tables, if you give *session*.
    :param metadata: the metadata of the app's models, so that ``create_all()`` and Alembic see the
        job tables. Flask-SQLAlchemy has its own. Without metadata, ``flask jobs admin init``
        creates the tables.

    Tasks belong to the instance. All other state belongs to the app; one instance can be
    initialized on several apps.

    >>> from flask import Flask
    >>> from flask_cronjobs import CronJobs
    >>> from flask_sqlalchemy import SQLAlchemy
    >>> app = Flask("shop")
    >>> app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///shop.sqlite"
    >>> db = SQLAlchemy(app)
    >>> jobs = CronJobs(app)

    The other examples use these names in an app context. The job tables exist, and so do two
    functions: the task ``send_report(user_id, week)``, and ``send_mail(address)``, which prints the
    address. ``drain``, from ``flask_cronjobs.testing``, performs all due runs.
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

        :param app: the app. The other parameters are those of the class, for this app only.
        :raises SetupError: the app has no database; the database is neither PostgreSQL nor SQLite,
            or has an unsupported driver; the app has this extension already; or a parameter has the
            wrong type.
        :raises ConfigError: a ``CRONJOBS_*`` value is invalid.

        1. Read ``CRONJOBS_*``. 2. Copy the job tables into the app's metadata. 3. Add the commands
        and the pages.

        >>> db, jobs = SQLAlchemy(), CronJobs()
        >>> def create_app():
        ...     app = Flask("shop")
        ...     app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///shop.sqlite"
        ...     db.init_app(app)
        ...     jobs.init_app(app)  # After db.init_app(app).
        ...     return app
        >>> create_app()
        <Flask 'shop'>
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
            for app_engine in db.engines:  # A handler may use any of them.
                end_interrupted_transactions(app_engine)
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
        """Turn a function into a task. Use it bare or with keywords.

        :param name: the task's name in the table; default: the function's.
        :param schedule: cron text, or an alias such as ``@daily``; see `Schedule`. It declares a
            definition with the task's name; *timezone*, *payload*, *catchup*, *overlap* and *ping*
            are its options, which `Task.schedule` describes.
        :param queue: the queue of the runs, for ``--queue``.
        :param priority: runs with a higher priority are claimed first.
        :param retry: a `Retry`, a number of attempts, ``False`` for one, or a callable that
            takes the attempt and the exception, and returns the seconds to wait, or None to give
            up.
        :param timeout: seconds that an attempt may take, at most 30 days; default
            ``CRONJOBS_TIMEOUT``. Every attempt has a timeout.
        :param concurrency: the number of runs of a concurrency key that may run at once, on all
            hosts.
        :param concurrency_key: a format that is filled in from the payload, such as
            ``"user:{user_id}"``; default: one key for the whole task.
        :param atomic: whether to commit the handler's ``db.session`` work and the run's success
            together.
        :param async_at_once: how many runs of an ``async def`` handler one process runs at once;
            default ``CRONJOBS_ASYNC_AT_ONCE``, which limits all such tasks together.
        :param around: a hook around the handler; see `around`.
        :param keep_output: whether to keep the last 64 kB that the handler prints and logs; default
            ``CRONJOBS_KEEP_OUTPUT``.
        :param order: ``"strict"`` executes the runs of a concurrency key one after the other, in
            the order of their ids. A run waits until the one before it has ended, even while that
            one waits for a retry. It needs *concurrency_key*.
        :param unique: a format that is filled in from the payload, such as ``"import:{shop_id}"``.
            It makes the idempotency key of runs that are enqueued without one. Runs of schedules
            have none.
        :param unique_while: how long a run holds its key, unless `Task.using` overrides it. The
            default is ``"pending"`` for a key that *unique* makes.
        :param rate: the number of attempts of a rate key that may begin in a period, on all hosts,
            such as ``"100/minute"``, ``"5/s"`` or ``"20/10s"``.
        :param rate_key: a format that is filled in from the payload, such as
            ``"mail:{account_id}"``; default: one key for the whole task. Tasks with the same key
            share its rate.
        :param burst: the number of attempts that may begin at once after a time without attempts;
            default 1.
        :param label: a format that is filled in from the payload, such as ``"invoice
            {invoice_id}"``. Lists show it. Values that ``CRONJOBS_REDACT`` names are hidden.
        :returns: the `Task`.
        :raises TaskError: an option is invalid, or the name is taken.
        :raises ScheduleError: the schedule or zone cannot be read.
        :raises TypeError: the handler does not take *payload*.
        :raises PayloadError: *payload* is not plain JSON.

        >>> @jobs.task
        ... def refresh_cache():
        ...     return "fresh"
        >>> @jobs.task(schedule="0 7 * * 1-5", timezone="Europe/Berlin", retry=5)
        ... def send_reminders():
        ...     send_mail("ada@example.com")
        >>> refresh_cache()  # A plain call calls the function.
        'fresh'
        """
        name, cron = options.pop("name", None), options.pop("schedule", None)
        schedule_options = {
            option: options.pop(option) for option in SCHEDULE_OPTIONS if option in options
        }
        handler_options = task_options(**options)

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            task = self._make(function, name, handler_options)
            if cron is None:
                check_unscheduled(task.name, schedule_options)
            else:
                task.schedule(cron, name=task.name, **schedule_options)
            return task

        return register if func is None else register(func)

    def around(self, hook: H) -> H:
        """Wrap the handlers of all tasks in *hook*. Use it as a decorator.

        :param hook: a function that takes the run, a `CurrentRun`, and either has one ``yield``, at
            which the handler is called, or returns a context manager. The first hook is the
            outermost; a task's own ``around=`` is the innermost.
        :returns: *hook* itself.
        :raises TaskError: *hook* is not a function, or is asynchronous.

        The hook is called for each attempt, in the handler's thread and app context, and its time
        counts towards the timeout. Its errors end the attempt like errors of the handler. It sees
        the handler's errors and may raise others instead, but cannot swallow them. With
        ``atomic=True``, it ends before the commit.

        >>> @jobs.around
        ... def announced(run):
        ...     print("begin", run.task)
        ...     yield
        ...     print("end", run.task)
        >>> run = send_report.using(commit=True).enqueue(1, "2026-W03")
        >>> drain(jobs).succeeded
        begin send_report
        end send_report
        1
        """
        self._registry.around.append(as_around(hook))
        return hook

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks, by name.

        >>> jobs.tasks["send_report"]
        <Task send_report>
        """
        return cast("Mapping[str, Task[..., Any]]", self._registry.tasks)

    @property
    def declarations(self) -> Mapping[str, Declaration]:
        """The definitions that code declares, by name.

        >>> weekly = {"user_id": 1, "week": "the last"}
        >>> task = send_report.schedule("0 7 * * 1", name="weekly", payload=weekly)
        >>> list(jobs.declarations)
        ['weekly']
        """
        return self._registry.declarations

    def get(self, name: str) -> Task[..., Any]:
        """Return a task by its name.

        :param name: the task's name.
        :returns: the `Task` that `task` made.
        :raises UnknownTask: no task has that name.

        >>> jobs.get("send_report") is send_report
        True
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
        """Enqueue a run of the task *name*, in ``db.session``: your commit makes it exist.

        :param name: the task's name.
        :param payload: the handler's keyword arguments.
        :returns: the same as `Task.enqueue`.
        :raises UnknownTask: no task has that name.
        :raises TypeError: the handler does not take *payload*.

        `Task.using` describes the options. Its errors and those of `Task.enqueue` are raised, too.

        >>> run = jobs.enqueue("send_report", {"user_id": 1, "week": "2026-W03"}, delay=60)
        >>> db.session.commit()
        >>> run.status
        'queued'
        """
        arguments = locals()
        options = {option: arguments[option] for option in EnqueueOptions._fields}
        task = self.get(name)
        # Check the payload first, since a warning is logged if `using` is called for nothing.
        values = task.payload_from(payload or {})
        return task.using(**options).enqueue(**values)

    def batch(
        self,
        key: str,
        *,
        then: Task[..., Any] | str | None = None,
        then_payload: Mapping[str, object] | None = None,
    ) -> Batch:
        """Open a batch to fill: each run that you enqueue in its ``with`` block joins it.

        :param key: the batch's name, unique as long as its row is kept; at most 500 characters.
        :param then: a task, or its name. One run of it is enqueued when the last run of the batch
            has ended, whether succeeded, dead, cancelled or skipped. Its ``current_run.batch`` has
            the counts.
        :param then_payload: the keyword arguments of that run.
        :returns: the `Batch`. The end of its block closes it. Entering a closed batch raises
            `BatchClosed`.
        :raises UnknownTask: no task has the name *then*.
        :raises TaskError: an option is invalid.
        :raises TypeError: the handler of *then* does not take *then_payload*.
        :raises PayloadError: *then_payload* is not plain JSON.

        The batch and its runs are made in ``db.session``, so they exist once you commit.

        >>> @jobs.task
        ... def sum_up():
        ...     print(current_run.batch.succeeded, "reports were sent")
        >>> with jobs.batch("reports:2026-W03", then=sum_up):
        ...     for user_id in (1, 2):
        ...         run = send_report.enqueue(user_id, "2026-W03")
        >>> db.session.commit()
        >>> drain(jobs).succeeded
        2 reports were sent
        3
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
        """Call *func* unless the effect *key* is done; return the recorded or new result.

        :param key: the name of the effect, such as ``"charge:invoice:812"``. It must be the same in
            each attempt.
        :param func: does the effect; called with *args* and *kwargs*.
        :param in_doubt: what to do if an earlier call died or was interrupted during the effect:
            ``"skip"`` (returns None; the doubt is logged and shown to operators), ``"redo"``, or
            ``"raise"``.
        :returns: the result of *func* after a round trip through JSON, so that a tuple becomes a
            list. A result that is not JSON or is too large is not kept: a warning is logged, the
            first call returns the result unchanged, and later calls return None.
        :raises EffectInDoubt: *in_doubt* is ``"raise"``, and the effect is in doubt.
        :raises TaskError: *key* or *in_doubt* is invalid.
        :raises TypeError: *func* is not callable, perhaps because it was called already.
        :raises SetupError: it is called inside itself; or, on SQLite, ``db.session`` holds the
            write lock.

        If *func* raises an error, the effect counts as not done, so a retry does it. On SQLite,
        the uncommitted work of *func* in ``db.session`` is rolled back. If two callers use a key
        at the same time, one calls *func* and the other waits for the result. Outside a run,
        another caller may repeat an effect that takes longer than ``CRONJOBS_LEASE``; an error in
        the log reports it.

        >>> jobs.once("reminder:812", send_mail, "ada@example.com")
        To: ada@example.com
        >>> jobs.once("reminder:812", send_mail, "ada@example.com")  # It is done already.
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


def _first(value: T | None, default: T | None) -> T | None:
    return default if value is None else value


def _add_commands_and_pages(app: Flask, settings: Settings) -> None:
    from .cli import add_commands

    add_commands(app, settings.work_in_debug)
    if settings.url_prefix is not None:
        from .web import create_blueprint

        if app.url_map.host_matching:
            logger.warning(
                "The app has host_matching=True, so every route needs a host, but the job pages "
                "have none: they and their /health answer 404. Serve them from an app without "
                "host_matching, on the same database, or set CRONJOBS_URL_PREFIX = None."
            )
        app.register_blueprint(create_blueprint(), url_prefix=settings.url_prefix)


def _refuse_translation(engine: Engine) -> None:
    """Refuse an engine that translates the schema of our tables, since our SQL would miss them."""
    schemas: dict[str | None, str] = engine.get_execution_options().get("schema_translate_map", {})
    if schemas.get(None):
        raise SetupError(
            f"The engine's schema_translate_map puts tables without a schema into {schemas[None]!r}"
            ", but has no effect on textual SQL, which Flask-CronJobs uses. To keep all tables "
            f"there, set connect_args={{'options': '-csearch_path={schemas[None]}'}} instead."
        )


def _check_names(app: Flask, db: Database) -> None:
    """Refuse an app that uses one of our names for its own command or table."""
    if GROUP in app.cli.commands:
        raise SetupError(
            f"The app {app.name!r} has a command or a group {GROUP!r} already, perhaps a "
            "blueprint's, which `flask jobs tick` would hide. Rename it; for a blueprint: "
            "Blueprint(…, cli_group='other')."
        )
    for name in filter(None, map(table_of_its_own, db.metadata)):
        raise SetupError(
            f"The app has a table {name!r} of its own, but Flask-CronJobs needs that name for its "
            "own rows. Rename it: give the class another __tablename__, and make a migration."
        )
