"""The values that one part of the package passes to another."""

import json
import re
from collections.abc import Iterable
from datetime import MINYEAR, datetime, timezone
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from .text import pattern

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None

Status: TypeAlias = Literal[
    "queued", "running", "succeeded", "failed", "dead", "cancelled", "skipped"
]
STATUSES: tuple[Status, ...] = get_args(Status)
TERMINAL: tuple[Status, ...] = ("succeeded", "dead", "cancelled", "skipped")

Catchup: TypeAlias = Literal["latest", "all", "none"]
Overlap: TypeAlias = Literal["skip", "allow"]
UniqueWhile: TypeAlias = Literal["kept", "pending", "waiting"]
Replace: TypeAlias = bool | Literal["payload", "run_at"]
#: How the runs of a concurrency key are executed; None means in no particular order.
Order: TypeAlias = Literal["strict"]
PauseKind: TypeAlias = Literal["task", "queue"]
InDoubt: TypeAlias = Literal["skip", "redo", "raise"]


class RunIds(list[int]):
    """The ids that `Task.enqueue_many` returns, in the order of its argument.

    :ivar is_new: for each of them, whether the call inserted the run; False if a run already held
        the idempotency key.

    >>> @jobs.task(unique="remind:{user_id}")
    ... def remind(user_id): ...
    >>> first = remind.enqueue(1)
    >>> ids = remind.enqueue_many([{"user_id": 1}, {"user_id": 2}])
    >>> db.session.commit()
    >>> ids.is_new
    [False, True]
    """

    def __init__(self, ids: Iterable[int] = (), is_new: Iterable[bool] = ()) -> None:
        super().__init__(ids)
        self.is_new: list[bool] = list(is_new)

    @property
    def new(self) -> list[int]:
        """The ids of the runs that the call inserted."""
        return [run for run, is_new in zip(self, self.is_new, strict=True) if is_new]


#: Ids have 64 bits; SQLite refuses larger numbers.
MAX_ID = 2**63 - 1
#: Roughly the start of that year, in seconds since 1970.
_YEAR_9000 = 7000 * 365.25 * 86400


class Claim(NamedTuple):
    """A run that a worker holds.

    It is a named tuple, which is created three times as fast as a frozen dataclass.

    :ivar id: the run's id.
    :ivar token: ``host:pid:random``, new for each claim statement and shared by its runs. A
        write with it matches no row once the run has been reclaimed.
    :ivar job_type: the task's name.
    :ivar attempt: the number of this attempt, from 1.
    :ivar max_attempts: how many attempts the run has in all.
    :ivar stored_payload: the payload as the database returned it. A worker may claim a thousand
        runs at once, and reads each payload when the run begins.
    :ivar stored_slot: the slot, or the time for which the run was enqueued, as the database
        returned it.
    :ivar definition_id: the definition whose slot this is; None for an enqueued run.
    :ivar error_type: the type of the error that ended the previous attempt; None for the first one.
    :ivar snoozes: how often the run has been snoozed.
    :ivar batch_id: the batch that the run belongs to.
    :ivar forgiven: attempts up to this number are not counted, since a step ended in the last of
        them.
    :ivar label: the run's label, if it has one.
    """

    id: int
    token: str
    job_type: str
    stored_payload: object
    attempt: int
    max_attempts: int
    stored_slot: object
    idempotency_key: str | None = None
    definition_id: int | None = None
    concurrency_key: str | None = None
    error_type: str | None = None
    snoozes: int = 0
    batch_id: int | None = None
    forgiven: int = 0
    label: str | None = None

    @property
    def identity(self) -> tuple[int, str]:
        """(run id, token): no other claim has the same, not even one of the same run."""
        return self.id, self.token

    def read(self) -> dict[str, JSON]:
        """Return the handler's arguments.

        :raises ValueError: the arguments cannot be read, or `scheduled_for` would fail, since the
            row was changed by hand.
        """
        payload, slot = self.stored_payload, self.stored_slot
        try:
            # Most slots are plain numbers: do not convert them, since few handlers read them.
            if not (type(slot) is float and 0 <= slot < _YEAR_9000):
                stored_time(slot)
            return {} if payload == "{}" else json_object(stored_json(payload))
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"run {self.id} cannot be read: {error!r}. Correct its row in job_runs."
            ) from None

    @property
    def scheduled_for(self) -> datetime:
        """The slot, or the time for which the run was enqueued."""
        return stored_time(self.stored_slot)

    @property
    def must_run_alone(self) -> bool:
        """Whether this attempt must run alone, even in a worker that performs runs side by side.

        This is so for the last attempt, and if the previous attempt was lost with its worker. A
        worker that performs one run at a time claims every retry alone; see `claim_statement`.
        """
        return must_run_alone(self.attempt, self.max_attempts, self.error_type)

    def __str__(self) -> str:
        """Return the run's task and id, without the payload, which is never logged."""
        return f"task {self.job_type}, run {self.id}"


#: The prefix of a token whose run was handed to an executor and has not begun there. The whole
#: token is ``handed:celery:DATABASE:host:pid:random``, with the database's fingerprint.
HANDED_PREFIX = "handed:"
#: Number of leases for which a run may wait in a broker before it is handed over again.
HANDED_LEASES = 5


def handed_to(token: str | None) -> str | None:
    """Return the executor to which a run with this token was handed; None if it was not."""
    # SQLite may return a blob.
    if not isinstance(token, str) or not token.startswith(HANDED_PREFIX):
        return None
    return token.removeprefix(HANDED_PREFIX).partition(":")[0]


def without_secret(token: str | None) -> str | None:
    """Return *token* without its random part, so that it can be shown."""
    if not isinstance(token, str):
        return token
    return token.rpartition(":")[0] or token


#: The number of bytes that are kept of what an attempt prints and logs. The last ones are kept.
MAX_OUTPUT_BYTES = 64 * 1024

#: The `error_type` of a run whose worker died or lost it.
WORKER_LOST = "WorkerLost"

#: The `error_type` of a run that an executor's worker gave back because it lacks the task.
NO_SUCH_TASK = "NoSuchTask"


def must_run_alone(attempt: int, max_attempts: int, error_type: str | None) -> bool:
    """Return whether an attempt must run alone in its process; see `Claim.must_run_alone`."""
    return attempt >= max_attempts or error_type == WORKER_LOST


#: Reads a JSON value at a position of a text. For short texts it is three times as fast as
#: `json.loads`.
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def stored_json(value: Any) -> Any:
    """Return the value of a JSON text, and any other value unchanged.

    SQLite returns a JSON number as a number.

    :raises ValueError: the text cannot be parsed.
    """
    if not isinstance(value, (str, bytes)):
        return value
    try:
        try:
            parsed, end = _scan(value, 0)
        except (StopIteration, TypeError):  # The text begins with a space, or is bytes.
            parsed, end = None, -1
        return parsed if end == len(value) else json.loads(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


#: Matches a string, a large number with an exponent, or minus zero in a JSON text.
_CHANGED_BY_JSONB = pattern(r'"(?:[^"\\]|\\.)*"|-?[\d.]+e\+\d+|-0\.0(?!\d)')


def json_text(value: JSON) -> str:
    """Return *value* as a JSON text that both databases store without changing a number.

    PostgreSQL's ``jsonb`` turns 1e22 into an integer, and drops the sign of -0.0. So 1e22 is
    written in full, and -0.0 as 0.0.
    """
    text = json.dumps(value)
    if "e+" not in text and "-0.0" not in text:
        return text
    return _CHANGED_BY_JSONB().sub(_plainly, text)


def _plainly(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else f"{float(match[0]) + 0.0:.1f}"


def json_object(value: JSON) -> dict[str, JSON]:
    """Return *value*, which must be a JSON object.

    :raises ValueError: *value* is not an object.
    """
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def stored_time(value: Any) -> datetime:
    """Return a time that a textual statement returned, as an aware time in UTC.

    :param value: a time, its text, or the seconds since 1970.
    :raises ValueError: it is not a time, or it is in the year 1, the first that Python knows.
    """
    if isinstance(value, float):
        try:
            return datetime.fromtimestamp(value, timezone.utc)
        except (OverflowError, OSError):  # Infinity raises the first.
            raise ValueError(f"{value:g} s since 1970 is outside of datetime's range") from None
    moment: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    if moment.year <= MINYEAR:
        raise ValueError(f"{moment} is too long ago")
    if moment.tzinfo is None:
        return moment.replace(tzinfo=timezone.utc)
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{moment} is too far in the future") from None


def time_or_none(value: Any) -> datetime | None:
    """Return what `stored_time` returns; None for NULL, and for a value that is not a time.

    A column of SQLite accepts any text.
    """
    try:
        return None if value is None else stored_time(value)
    except (ValueError, AttributeError):  # It is not a time, or not even a text.
        return None


#: How an attempt ended; ``failed`` will be retried, ``dead`` will not.
OutcomeKind: TypeAlias = Literal["succeeded", "failed", "dead", "cancelled", "released", "snoozed"]
OUTCOME_KINDS: tuple[OutcomeKind, ...] = get_args(OutcomeKind)
#: The kinds whose attempt is stored as a failed one.
FAILED_KINDS: tuple[OutcomeKind, ...] = ("failed", "dead")
#: The kinds that return the run to the queue, now or later; the attempt does not count.
RETURNED_KINDS: tuple[OutcomeKind, ...] = ("released", "snoozed")


class Outcome(NamedTuple):
    """How one attempt ended; a named tuple for speed, like `Claim`.

    :ivar id: the run's id.
    :ivar token: the claim's token.
    :ivar kind: the outcome; ``failed`` will be retried, ``dead`` will not.
    :ivar attempt: the number of the attempt, from 1.
    :ivar job_type: the task's name.
    :ivar error: the message, shortened and without credentials; the warning of a success, or None.
    :ivar error_type: the name of the exception's type, or the kind of the warning.
    :ivar stack: the stack, shortened; None where it would not help.
    :ivar result: what the handler returned, if it is JSON and small.
    :ivar delay: seconds until the next attempt, at least; only for ``failed`` and ``snoozed``.
    :ivar until: the earliest time of the next attempt; only for ``snoozed``.
    :ivar holds_rate: no attempt of its rate key may begin during *delay*.
    :ivar seconds: how long the attempt took.
    :ivar reclaimed: the lease ended. The outcome is recorded only if the lease has not been
        renewed since.
    :ivar finalized: the outcome is in the row already, written in the handler's own transaction.
    :ivar definition_id: the definition whose slot the run is; None for an enqueued run.
    :ivar exception: what the handler of a ``failed`` or ``dead`` run raised; if its worker was
        lost, a new `~flask_cronjobs.WorkerLost`. None if no attempt was made, or more than a
        hundred outcomes wait for slow receivers. The local variables of its frames are cleared, and
        its message is as it was raised, credentials included.
    :ivar label: the run's label, if it has one.
    :ivar output: what the handler has printed and logged, if that is kept.
    :ivar unbegun: the run was released, and its handler has certainly not begun.
    """

    id: int
    token: str
    kind: OutcomeKind
    attempt: int
    job_type: str
    error: str | None = None
    error_type: str | None = None
    stack: str | None = None
    result: JSON = None
    delay: float = 0.0
    seconds: float = 0.0
    reclaimed: bool = False
    finalized: bool = False
    definition_id: int | None = None
    exception: BaseException | None = None
    until: datetime | None = None
    holds_rate: bool = False
    label: str | None = None
    output: str | None = None
    unbegun: bool = False

    @property
    def identity(self) -> tuple[int, str]:
        """(run id, token), as in `Claim.identity`."""
        return self.id, self.token


class BatchCounts(NamedTuple):
    """How many runs of a batch have ended, and how. `CronJobs.batch_counts` has an example.

    :ivar key: the batch's key.
    :ivar total: the number of all its runs.
    :ivar succeeded: the number of runs that succeeded.
    :ivar dead: the number of runs that are dead.
    :ivar cancelled: the number of runs that were cancelled.
    :ivar skipped: the number of runs that were skipped.
    :ivar finished: whether all runs have ended and no other can join.
    """

    key: str
    total: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0
    finished: bool = False

    @property
    def ended(self) -> int:
        """The number of runs that have ended."""
        return self.succeeded + self.dead + self.cancelled + self.skipped


class TickReport(NamedTuple):
    """The results of one tick, as its row of ``job_ticks`` has them.

    :ivar worker: ``host:pid`` of its process.
    :ivar recorded: how many runs were inserted for due slots.
    :ivar skipped: how many rows of skipped slots were inserted.
    :ivar reclaimed: how many attempts were taken from workers that were lost.
    :ivar succeeded: how many attempts succeeded. The same holds for *failed*, *dead*, *cancelled*,
        *released* and *snoozed*.
    :ivar lost: how many attempts ended after another worker had taken their runs.
    :ivar pruned: how many runs were deleted.
    :ivar seconds: how long the tick took.

    >>> run = send_report.using(commit=True).enqueue(1, "2026-W03")
    >>> report = jobs.tick()
    >>> report.succeeded, report.attempts
    (1, 1)
    """

    worker: str
    recorded: int = 0
    skipped: int = 0
    reclaimed: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    released: int = 0
    snoozed: int = 0
    lost: int = 0
    pruned: int = 0
    seconds: float = 0.0

    @property
    def attempts(self) -> int:
        """The number of attempts that ended in this tick."""
        return sum(getattr(self, kind) for kind in OUTCOME_KINDS)


class RecordedSlot(NamedTuple):
    """The row of ``job_runs`` for a slot that will run, or for skipped slots.

    :ivar run_id: the row's id.
    :ivar job_type: the task's name.
    :ivar at: the slot, or the last one of several skipped slots; aware, in UTC.
    :ivar skipped: the number of skipped slots that the row represents; 0 if the slot will run.
    :ivar reason: why they were skipped; None for a run.
    """

    run_id: int
    definition_id: int
    job_type: str
    at: datetime
    skipped: int
    reason: str | None
