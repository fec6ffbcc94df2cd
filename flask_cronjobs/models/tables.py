"""The job tables as mapped classes on our own declarative base.

They work with ``db.session`` like the app's models, and `copies` adds them to the app's metadata.

No foreign key refers to ``job_definitions``, so that a definition can be removed while its runs
stay, and no cascade over a large table delays pruning or removing.
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

#: The word of `JobRun.waits_for` for each kind of waiting step.
_WAITS_FOR = {"wait": "signal", "sleep": "sleep"}


class JobDefinition(Base):
    """A schedule of a task, with its payload and policy."""

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
    """A cron text for `flask_cronjobs.Schedule`."""
    timezone: Mapped[str] = mapped_column(server_default=text("'UTC'"))
    queue: Mapped[str] = mapped_column(server_default=text("'default'"))
    priority: Mapped[int] = mapped_column(server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(server_default=text("10"))
    catchup: Mapped[str] = mapped_column(server_default=text("'latest'"))
    overlap: Mapped[str] = mapped_column(server_default=text("'skip'"))
    concurrency_key: Mapped[str | None]
    concurrency_limit: Mapped[int | None]
    origin: Mapped[str] = mapped_column(server_default=text("'code'"))
    """``code`` if a task declares it and ticks update it; ``database`` if
    `flask_cronjobs.CronJobs.add_definition` made it."""
    paused_at: Mapped[datetime | None]
    next_run_at: Mapped[datetime | None]
    """The watermark: the first slot that is not recorded yet."""
    considered_until: Mapped[datetime | None]
    """Every slot up to this time has been recorded, or never will be. An update of the time zone
    data may move a slot before `next_run_at`, but slots before this time are ignored."""
    undeclared_since: Mapped[datetime | None]
    """When a tick first found that its code does not declare the definition. A later tick whose
    code declares it sets this back to null."""
    app: Mapped[str | None]
    """The name of the app whose code declared it."""
    ping_url: Mapped[str | None]
    """The monitor's URL for its runs, a secret; see `~flask_cronjobs.CronJobs.task`."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    strict: Mapped[bool] = mapped_column(server_default=text("'0'"))
    """Whether its runs are in strict order."""
    rate_key: Mapped[str | None]
    label: Mapped[str | None]
    """The label of its runs, which was made when it was declared."""


class JobRun(Base):
    """One obligation to run a task, from a slot or from ``enqueue``."""

    __tablename__ = "job_runs"
    __table_args__: Any = (
        unique("uq_job_runs_slot", "definition_id", "scheduled_for", where=conditions.DEFINED),
        unique("uq_job_runs_idempotency_key", "idempotency_key", where=conditions.HOLDS_KEY),
        # A search also needs the runs that have given their key up.
        partial("ix_job_runs_idempotency_key", "idempotency_key", where=conditions.HAD_KEY),
        # This enforces concurrency=N: at most one running row for each share of a key.
        unique(
            "uq_job_runs_concurrency",
            *("concurrency_key", "concurrency_share"),
            where=conditions.HAS_SHARE,
        ),
        partial("ix_job_runs_order", "concurrency_key", "id", where=conditions.ORDERED),
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
            *("gate", "rate_key", "job_type", "queue", "priority", "run_at", "id"),
            where=conditions.RATED,
        ),
        check(
            "ck_job_runs_gate",
            "gate IS NULL OR (gate = 'keys' AND concurrency_key IS NOT NULL"
            " OR gate = 'order' AND strict OR gate = 'rate' AND rate_key IS NOT NULL)"
            f" AND {conditions.UNCLAIMED}",
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
    """The token of the claim that holds this run: ``host:pid:random``, new for each claim
    statement and shared by its runs. It begins with ``handed:`` while an executor has the run."""
    locked_until: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    """When the latest attempt was claimed."""
    finished_at: Mapped[datetime | None]
    """When the run ended; set if and only if the status is terminal."""
    failed_at: Mapped[datetime | None]
    """The end of the latest failed attempt."""
    last_error: Mapped[str | None]
    """Why the latest attempt failed, or why the run was snoozed, cancelled or skipped. If the run
    succeeded, a warning that its handler left work uncommitted."""
    error_type: Mapped[str | None]
    result: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    """The handler's return value, if it is small JSON; for a skipped run, its skipped slots."""
    progress: Mapped[float | None]
    """The progress from 0 to 1 that the handler last reported."""
    progress_message: Mapped[str | None]
    idempotency_key: Mapped[str | None]
    unique_while: Mapped[str | None]
    """How long no other run may have the key: ``pending`` until this run has ended, ``waiting``
    until it begins, null while the row is kept."""
    concurrency_key: Mapped[str | None]
    concurrency_limit: Mapped[int | None]
    """The number of runs of the key that may run at once."""
    concurrency_share: Mapped[int | None]
    """The number of the key's share, from 1, that the run holds while it runs."""
    cancel_requested_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)
    batch_id: Mapped[int | None] = mapped_column(BigId)
    """The batch that the run belongs to."""
    strict: Mapped[bool] = mapped_column(server_default=text("'0'"))
    """Whether the runs of its concurrency key run in strict order."""
    gate: Mapped[str | None]
    """The reason why no claim reads the run; null if there is none. ``keys``: its concurrency key
    was full when a claim met it. ``order``: it did not come first in its strict order. ``rate``: it
    waits for the next start of its rate key."""
    rate_key: Mapped[str | None]
    """The key whose rate limits when attempts begin."""
    fingerprint: Mapped[str | None]
    """The fingerprint of its error, if the latest attempt failed; equal errors have the same."""
    forgiven: Mapped[int] = mapped_column(server_default=text("'0'"))
    """The number of attempts, from the first on, that do not count, since the run finished a step
    in the last of them. ``max_attempts`` was raised by this number."""
    label: Mapped[str | None]
    """The text that the task's ``label`` made of the payload. Values that the pages hide are hidden
    in it, too."""

    is_new = False
    """Whether the ``enqueue`` that returned this object inserted the run. It is False if an
    idempotency key led to an existing run, and for a run that was read. This is not a column; if
    several calls returned the object, the last one counts."""

    @property
    def waits_for(self) -> str | None:
        """The event that the run's current step waits for: ``"signal NAME"`` or ``"sleep NAME"``.

        It is None if no step waits. Each use queries the database in the object's session.
        """
        session = object_session(self)
        if session is None:
            return None
        # Compare the time, since the status is ``failed`` if an earlier attempt has failed.
        waits = (JobStep.due_at == JobRun.run_at, JobStep.finished_at.is_(None))
        query = select(JobStep.kind, JobStep.name).join(JobRun, JobRun.id == JobStep.run_id)
        unclaimed = (JobRun.locked_by.is_(None), JobRun.finished_at.is_(None))
        query = query.where(JobRun.id == self.id, *unclaimed, *waits)
        step = session.execute(query.limit(1)).first()
        return None if step is None else f"{_WAITS_FOR[step.kind]} {step.name}"

    def __repr__(self) -> str:
        loaded = self.__dict__  # A repr must not query the database.
        facts = (str(loaded.get(name, "?")) for name in ("id", "job_type", "status"))
        return f"<JobRun {' '.join(facts)}>"


# These are outside the class, since columns can be used only there: on SQLite, Alembic silently
# omits an index whose expressions are texts.
partial(
    "ix_job_runs_ready",
    *(JobRun.priority.desc(), JobRun.run_at, JobRun.id),
    where=conditions.READY,
)
partial(
    "ix_job_runs_parked",
    *(JobRun.gate, JobRun.concurrency_key, JobRun.job_type, JobRun.queue),
    *(JobRun.priority.desc(), JobRun.run_at, JobRun.id),
    where=conditions.PARKED,
)
# The runs of a batch by status, and within each status by the time when they are due.
partial(
    "ix_job_runs_batch",
    *(JobRun.batch_id, JobRun.status, JobRun.run_at, JobRun.id),
    where=conditions.IN_BATCH,
)
# If too few of the first ready runs can be claimed, a claim steps from one task, queue and priority
# to the next.
partial(
    "ix_job_runs_ready_groups",
    *(JobRun.job_type, JobRun.queue, JobRun.priority, JobRun.run_at, JobRun.id),
    where=conditions.READY_GROUPS,
)


class JobEffect(Base):
    """The mark of one effect, inserted before the effect and completed after it."""

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
    """``begun`` (in progress, or in doubt once its owner is gone), ``done`` or ``in_doubt``."""
    locked_by: Mapped[str | None]
    """The owner: the token of the run's claim, or a separate token outside a run."""
    locked_until: Mapped[datetime | None]
    """Outside a run, the time until which the owner counts as alive."""
    result: Mapped[JSON] = mapped_column(JSONType, nullable=True)
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    done_at: Mapped[datetime | None]


class JobBatch(Base):
    """Runs that belong together, and the task to run when all of them have ended."""

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
    """The other columns of the ``then`` run."""
    then_run_id: Mapped[int | None] = mapped_column(BigId)
    """The ``then`` run, once it is enqueued."""
    opened_at: Mapped[datetime] = mapped_column(server_default=NOW)
    closed_at: Mapped[datetime | None]
    """The time since which no run can join it."""
    finished_at: Mapped[datetime | None]
    """The time at which a worker saw that all runs had ended."""
    total: Mapped[int | None]
    """The number of runs when it finished; until then, their rows are counted."""
    succeeded: Mapped[int | None]
    dead: Mapped[int | None]
    cancelled: Mapped[int | None]
    skipped: Mapped[int | None]


set_when_created(Base.metadata.tables["job_runs"])
