"""The tables, as mapped classes on a declarative base of our own.

They work with ``db.session`` like the app's models; `copies` adds them to the app's metadata.

On purpose, no foreign key refers to ``job_definitions``: a definition can be removed while its runs
stay, and neither pruning nor removing waits for a cascade over a large table.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Mapped, mapped_column, object_session

from ..types import JSON, STATUSES, TERMINAL
from . import conditions
from .columns import check, partial, set_when_created, storage_options, unique
from .records import NOW, Base, BigId, JobStep, JSONType

__all__ = ["JobBatch", "JobDefinition", "JobEffect", "JobRun"]

#: What `JobRun.waits_for` says for each kind of step that waits.
_WAITS_FOR = {"wait": "signal", "sleep": "sleep"}


class JobDefinition(Base):
    """A schedule for a task, with its payload and policy."""

    __tablename__ = "job_definitions"
    __table_args__: Any = (
        unique("uq_job_definitions_name", "name"),
        partial("ix_job_definitions_due", "next_run_at", where=conditions.SCHEDULED),
        partial("ix_job_definitions_pinged", "id", where=conditions.PINGED),
        check("ck_job_definitions_catchup", "catchup IN ('latest', 'all', 'none')"),
        check("ck_job_definitions_overlap", "overlap IN ('skip', 'allow')"),
        check("ck_job_definitions_origin", "origin IN ('code', 'database')"),
        check("ck_job_definitions_max_attempts", "max_attempts >= 1"),
        check("ck_job_definitions_concurrency_limit", conditions.KEY_HAS_LIMIT),
    )

    name: Mapped[str]
    job_type: Mapped[str]
    """The task's name."""
    payload: Mapped[dict[str, JSON]] = mapped_column(JSONType, server_default=text("'{}'"))
    schedule: Mapped[str]
    """Cron text, as `flask_cronjobs.Schedule` reads it."""
    timezone: Mapped[str] = mapped_column(server_default=text("'UTC'"))
    queue: Mapped[str] = mapped_column(server_default=text("'default'"))
    priority: Mapped[int] = mapped_column(server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(server_default=text("10"))
    catchup: Mapped[str] = mapped_column(server_default=text("'latest'"))
    overlap: Mapped[str] = mapped_column(server_default=text("'skip'"))
    concurrency_key: Mapped[str | None]
    concurrency_limit: Mapped[int | None]
    origin: Mapped[str] = mapped_column(server_default=text("'code'"))
    """``code``: declared by a task, updated by the tick; ``database``: by add_definition."""
    paused_at: Mapped[datetime | None]
    next_run_at: Mapped[datetime | None]
    """The watermark: the first slot not recorded yet, as computed when it was written."""
    considered_until: Mapped[datetime | None]
    """Every slot up to here has been recorded, or was never owed. An update of the time zones may
    move a slot to before `next_run_at`, but none to before this."""
    undeclared_since: Mapped[datetime | None]
    """From when on the code that ticked did not declare it; null while some code does."""
    app: Mapped[str | None]
    """The name of the app whose code declared it."""
    ping_url: Mapped[str | None]
    """What tells a monitor of its runs; see `~flask_cronjobs.CronJobs.task`. It is a secret."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    strict: Mapped[bool] = mapped_column(server_default=text("'0'"))
    """Whether its runs have a strict order."""
    rate_key: Mapped[str | None]
    label: Mapped[str | None]
    """The label of its runs, made when it was declared."""


class JobRun(Base):
    """One obligation to run a task, from a slot or from ``enqueue``."""

    __tablename__ = "job_runs"
    __table_args__: Any = (
        unique("uq_job_runs_slot", "definition_id", "scheduled_for", where=conditions.DEFINED),
        unique("uq_job_runs_idempotency_key", "idempotency_key", where=conditions.HOLDS_KEY),
        # The same for a search, which must find also those that have given their key up.
        partial("ix_job_runs_idempotency_key", "idempotency_key", where=conditions.HAD_KEY),
        # This enforces concurrency=N: at most one running row for each share of a key.
        unique(
            "uq_job_runs_concurrency",
            *("concurrency_key", "concurrency_share"),
            where=conditions.HAS_SHARE,
        ),
        partial("ix_job_runs_order", "concurrency_key", "id", where=conditions.ORDERED),
        partial("ix_job_runs_parked", "concurrency_key", where=conditions.PARKED),
        partial("ix_job_runs_odd", "id", where=conditions.ODD),
        partial("ix_job_runs_lease", "locked_until", where=conditions.RUNNING),
        partial("ix_job_runs_live", "definition_id", where=conditions.LIVE_DEFINED),
        partial("ix_job_runs_finished", "finished_at", where=conditions.DONE_ALONE),
        partial("ix_job_runs_dead", "finished_at", where=conditions.DEAD),
        partial("ix_job_runs_set_aside", "id", where=conditions.SET_ASIDE),
        check("ck_job_runs_status", f"status IN {conditions.sql_list(STATUSES)}"),
        check(
            "ck_job_runs_running_is_locked",
            "(status = 'running') = (locked_by IS NOT NULL)"
            " AND (status = 'running') = (locked_until IS NOT NULL)",
        ),
        check(
            "ck_job_runs_terminal_is_finished",
            f"(status IN {conditions.sql_list(TERMINAL)}) = (finished_at IS NOT NULL)",
        ),
        check(
            "ck_job_runs_attempts",
            "attempts >= 0 AND attempts <= max_attempts AND max_attempts >= 1",
        ),
        check(
            "ck_job_runs_concurrency_share",
            "(status = 'running' AND concurrency_key IS NOT NULL)"
            " = (concurrency_share IS NOT NULL)",
        ),
        check(
            "ck_job_runs_concurrency_limit",
            f"{conditions.KEY_HAS_LIMIT} AND (NOT strict OR concurrency_key IS NOT NULL)",
        ),
        partial(
            "ix_job_runs_rate",
            *("rate_mark", "rate_key", "job_type", "queue", "priority", "run_at", "id"),
            where=conditions.RATED,
        ),
        check(
            "ck_job_runs_gate",
            f"gate IS NULL OR ({conditions.PARKED} AND strict AND {conditions.RUNNABLE})",
        ),
        storage_options(),
    )

    definition_id: Mapped[int | None] = mapped_column(BigId)
    """The definition whose slot this run is; null for an enqueued run."""
    job_type: Mapped[str]
    """The task's name."""
    queue: Mapped[str] = mapped_column(server_default=text("'default'"))
    payload: Mapped[dict[str, JSON]] = mapped_column(JSONType, server_default=text("'{}'"))
    priority: Mapped[int] = mapped_column(server_default=text("0"))
    """Higher is claimed first."""
    scheduled_for: Mapped[datetime] = mapped_column(server_default=NOW)
    """The slot, or the time that enqueue asked for; never changes."""
    run_at: Mapped[datetime] = mapped_column(server_default=NOW)
    """When the run may be claimed; a retry sets it to a later time."""
    status: Mapped[str] = mapped_column(server_default=text("'queued'"))
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    """Attempts begun, counted at the claim."""
    max_attempts: Mapped[int] = mapped_column(server_default=text("10"))
    snoozes: Mapped[int] = mapped_column(server_default=text("0"))
    """How often its handler raised `~flask_cronjobs.Snooze`; those attempts are not counted."""
    locked_by: Mapped[str | None]
    """The token of the claim that holds this run: ``host:pid:random``, fresh for each claim."""
    locked_until: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    """When the latest attempt was claimed."""
    finished_at: Mapped[datetime | None]
    """When the run ended; set if and only if the status is terminal."""
    failed_at: Mapped[datetime | None]
    """When the latest failed attempt ended."""
    last_error: Mapped[str | None]
    """Why the latest attempt failed, or the run was snoozed, cancelled or skipped; of a run that
    succeeded, a warning that its handler left work uncommitted."""
    error_type: Mapped[str | None]
    result: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """What the handler returned, if JSON and small; of a skipped run, which slots it stands for."""
    progress: Mapped[float | None]
    """From 0 to 1, as the handler last reported."""
    progress_message: Mapped[str | None]
    idempotency_key: Mapped[str | None]
    unique_while: Mapped[str | None]
    """For how long no other run may have the key: while this one is ``pending`` (has not ended), or
    ``waiting`` (has not begun); null: as long as this row is kept."""
    concurrency_key: Mapped[str | None]
    concurrency_limit: Mapped[int | None]
    """How many runs of the key may run at once."""
    concurrency_share: Mapped[int | None]
    """Which share of the key this run holds while it runs, from 1."""
    cancel_requested_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    batch_id: Mapped[int | None] = mapped_column(BigId)
    """The batch that the run belongs to."""
    strict: Mapped[bool] = mapped_column(server_default=text("'0'"))
    """Whether it has a place in the strict order of its concurrency key."""
    gate: Mapped[str | None]
    """What holds the run back, so that no claim reads it; null for a run that is ready, or has no
    need to be. ``order``: it was not first in its strict order when a claim met it."""
    rate_key: Mapped[str | None]
    """The key at whose rate its attempts begin."""
    rate_mark: Mapped[str | None]
    """``waits``: for the next start of its rate key, so that it is not to be claimed yet."""
    fingerprint: Mapped[str | None]
    """The group of its error, if its latest attempt failed."""
    forgiven: Mapped[int] = mapped_column(server_default=text("'0'"))
    """Attempts up to this one do not count: after the failure before, it finished a step.
    ``max_attempts`` was raised by as many."""
    label: Mapped[str | None]
    """What or whom the run is for, as the task's ``label`` says; what is hidden on the pages is
    hidden in it."""

    is_new = False
    """Whether the ``enqueue`` that returned this object, the last one if several did, inserted the
    run. False if an idempotency key made it return a run that there was, and for a run that was
    read. No column."""

    @property
    def waits_for(self) -> str | None:
        """What a step of the waiting run waits for: ``"signal NAME"`` or ``"sleep NAME"``.

        None if no step waits. Each use asks the database, in the session of the object.
        """
        session = object_session(self)
        if session is None:
            return None
        # By the time, not by the status: if an attempt has failed before, that is ``failed``.
        waits = (JobStep.due_at == JobRun.run_at, JobStep.finished_at.is_(None))
        query = select(JobStep.kind, JobStep.name).join(JobRun, JobRun.id == JobStep.run_id)
        lives = (JobRun.locked_by.is_(None), JobRun.finished_at.is_(None))
        query = query.where(JobRun.id == self.id, *lives, *waits)
        step = session.execute(query.limit(1)).first()
        return None if step is None else f"{_WAITS_FOR[step.kind]} {step.name}"

    def __repr__(self) -> str:
        loaded = self.__dict__  # A repr must not query the database.
        facts = (str(loaded.get(name, "?")) for name in ("id", "job_type", "status"))
        return f"<JobRun {' '.join(facts)}>"


# Outside the class, where columns are at hand: Alembic's SQLite silently leaves an index out whose
# expressions are text.
for _name, _rows in (("", conditions.UNKEYED), ("_front", conditions.KEYED)):
    partial(
        f"ix_job_runs_runnable{_name}",
        *(JobRun.priority.desc(), JobRun.run_at, JobRun.id),
        where=_rows,
    )
partial(
    "ix_job_runs_runnable_keyed",
    *(JobRun.concurrency_key, JobRun.priority.desc(), JobRun.run_at, JobRun.id),
    where=conditions.KEYED,
)
# The runs of a batch by status; of those that wait, the ones that are due last are at the end.
partial(
    "ix_job_runs_batch",
    *(JobRun.batch_id, JobRun.status, JobRun.run_at, JobRun.id),
    where=conditions.IN_BATCH,
)
# From one task, queue and priority to the next, where the queue's front has nothing to claim.
for _name, _rows in (("free", conditions.UNKEYED_GROUPS), ("keyed", conditions.KEYED_GROUPS)):
    partial(
        f"ix_job_runs_{_name}_groups",
        *(JobRun.job_type, JobRun.queue, JobRun.priority, JobRun.run_at, JobRun.id),
        where=_rows,
    )


class JobEffect(Base):
    """The mark of one effect, made before it is tried and completed after."""

    __tablename__ = "job_effects"
    __table_args__: Any = (
        unique("uq_job_effects_key", "key"),
        partial("ix_job_effects_open", "id", where=conditions.OPEN_EFFECT),
        partial("ix_job_effects_done", "done_at", where=conditions.DONE_EFFECT),
        check("ck_job_effects_state", "state IN ('begun', 'done', 'in_doubt')"),
        check("ck_job_effects_done", "(state = 'done') = (done_at IS NOT NULL)"),
    )

    key: Mapped[str]
    run_id: Mapped[int | None] = mapped_column(BigId)
    state: Mapped[str] = mapped_column(server_default=text("'begun'"))
    """``begun`` (being done, or in doubt once its owner is gone), ``done``, or ``in_doubt``."""
    locked_by: Mapped[str | None]
    """Its owner: the token of the run's claim, or outside a run a token of its own."""
    locked_until: Mapped[datetime | None]
    """Outside a run: until when the owner is taken to be alive."""
    result: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    done_at: Mapped[datetime | None]


class JobBatch(Base):
    """Runs that belong together, and the task to run when the last of them has ended."""

    __tablename__ = "job_batches"
    __table_args__: Any = (
        unique("uq_job_batches_key", "key"),
        unique("uq_job_batches_then", "then_run_id", where=conditions.FOLLOWED),
        partial("ix_job_batches_open", "id", where=conditions.OPEN_BATCH),
        partial("ix_job_batches_ended", "finished_at", where=conditions.ENDED_BATCH),
        check("ck_job_batches_finished", "finished_at IS NULL OR closed_at IS NOT NULL"),
        check("ck_job_batches_total", "(finished_at IS NULL) = (total IS NULL)"),
    )

    key: Mapped[str]
    then_task: Mapped[str | None]
    """The task to run when the last run has ended."""
    then_payload: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    then_columns: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """The other columns of that run."""
    then_run_id: Mapped[int | None] = mapped_column(BigId)
    """That run, once it is enqueued."""
    opened_at: Mapped[datetime] = mapped_column(server_default=NOW)
    closed_at: Mapped[datetime | None]
    """When it was complete: no run joins it any more."""
    finished_at: Mapped[datetime | None]
    """When the last run had ended, as a worker saw it."""
    total: Mapped[int | None]
    """How many runs it had when it had finished; until then, their rows are counted."""
    succeeded: Mapped[int | None]
    dead: Mapped[int | None]
    cancelled: Mapped[int | None]
    skipped: Mapped[int | None]


set_when_created(Base.metadata.tables["job_runs"])
