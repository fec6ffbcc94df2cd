"""The statements that claim runs; PostgreSQL's record outcomes at the same time. Their rows, too.

PostgreSQL has four: with a claim or without, for any outcomes or for plain successes, which are
most and need a third of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import TextClause, text

from ...db.connection import Rows
from ...db.dialect import Dialect
from ...types import Claim, Outcome
from ..outcomes import recorded
from ..run_columns import begun
from .candidates import candidates


class ClaimRequest(NamedTuple):
    """What a worker asks for.

    :ivar limit: how many runs at most.
    :ivar token: the token that they get.
    :ivar tasks: the tasks that this worker can run.
    :ivar queues: the queues to claim from; empty means all but *elsewhere*.
    :ivar elsewhere: queues not to claim from, also if they are among *queues*.
    :ivar lease: seconds that the claim holds without a heartbeat.
    :ivar idle: whether the worker holds nothing else, so that a retry may be claimed.
    :ivar after: the concurrency key after which a search from key to key begins.
    :ivar side_by_side: whether the runs are to run at the same time, as async handlers do. Then
        retries are claimed together with others, but for a last attempt, and for one after a lost
        worker; and unless *idle*, those are passed over.
    :ivar handed: the id and token of a handed run to begin, in place of a claim from the queue.
    """

    limit: int
    token: str
    tasks: tuple[str, ...]
    queues: tuple[str, ...] = ()
    elsewhere: frozenset[str] = frozenset()
    lease: float = 120.0
    idle: bool = True
    after: str = ""
    side_by_side: bool = False
    handed: tuple[int, str] | None = None

    def parameters(self, d: Dialect) -> dict[str, object]:
        """Return the parameters of `claim`, or of `leases.begin`."""
        run_id, handed = self.handed or (None, None)
        queues = tuple(self.elsewhere)
        if self.queues:
            queues = tuple(each for each in self.queues if each not in self.elsewhere)
        return {
            "limit": self.limit,
            "id": run_id,
            "handed": handed,
            "token": self.token,
            "tasks": d.array(self.tasks),
            "queues": d.array(queues),
            "but_queues": not self.queues,
            "lease": self.lease,
            "idle": self.idle,
            "after": self.after,
            "side_by_side": self.side_by_side,
        }


class Answer(NamedTuple):
    """What `record_and_claim` recorded and claimed.

    :ivar recorded: the ids of the runs whose outcomes are recorded.
    :ivar claims: the runs newly claimed.
    :ivar cancelled: those of *recorded* that became cancelled instead of being retried, because a
        cancel was requested while they ran.
    :ivar locked: the ids of the runs that are held still, and whose outcomes cannot be recorded
        yet: another transaction has locked their rows.
    """

    recorded: frozenset[int] = frozenset()
    claims: tuple[Claim, ...] = ()
    cancelled: frozenset[int] = frozenset()
    locked: frozenset[int] = frozenset()

    def plus(self, other: Answer) -> Answer:
        """Return this one with the outcomes that *other* says are recorded."""
        return self._replace(
            recorded=self.recorded | other.recorded, cancelled=self.cancelled | other.cancelled
        )

    def stored(self, outcome: Outcome) -> Outcome:
        """Return *outcome* as its row has it."""
        return outcome._replace(kind="cancelled") if outcome.id in self.cancelled else outcome


#: The columns of a claim, in the order of `Claim`'s fields, and then those by which it is sorted.
CLAIMED = (
    *("id", "job_type", "payload", "attempts", "max_attempts", "scheduled_for"),
    *("idempotency_key", "definition_id", "concurrency_key", "error_type", "snoozes"),
    *("batch_id", "forgiven", "label"),
    *("rank", "run_at"),
)
NO_CLAIM = ", ".join(f"NULL AS {name}" for name in CLAIMED[1:])
#: The runs of a status in one row: to read a row for each takes a tenth of a worker's time.
_IDS = "status AS stored, string_agg(CAST(id AS text), ',') AS ids"


@lru_cache(maxsize=16)
def record_and_claim(d: Dialect, plain: bool, claims: bool) -> TextClause:
    """Return PostgreSQL's statement that records outcomes, and claims if *claims*.

    :param plain: whether all outcomes are plain successes.
    """
    ctes = [recorded(d, plain)]
    rows = [f"SELECT NULL AS id, {NO_CLAIM}, {_IDS} FROM recorded GROUP BY status"]
    if claims:
        ctes += [candidates(d), f"claimed AS ({_take(d)})"]
        rows += [f"SELECT {', '.join(CLAIMED)}, NULL AS stored, NULL AS ids FROM claimed"]
    return text(f"WITH RECURSIVE {', '.join(ctes)} {' UNION ALL '.join(rows)}")


@lru_cache(maxsize=8)
def claim(d: Dialect) -> TextClause:
    """Return the statement that claims runs, and does nothing else."""
    return text(f"WITH RECURSIVE {candidates(d)} {_take(d)}")


@lru_cache(maxsize=8)
def next_run(d: Dialect) -> TextClause:
    """Return the query for the run that an idle worker would claim first; it claims nothing."""
    return text(f"""
    WITH RECURSIVE {candidates(d)}
    SELECT job_type, attempts + 1 AS attempts, max_attempts, error_type FROM job_runs
    WHERE {d.any_of("id", "SELECT id FROM chosen")}
    """)


def returned(d: Dialect) -> str:
    """Return the columns that a claim returns."""
    # These two are only for sorting, and one odd value must not make the rows unsortable.
    simple = {
        "rank": "-CAST(job_runs.priority AS bigint)",
        "run_at": d.sortable("job_runs.run_at"),
        "payload": d.unparsed("job_runs.payload"),
    }
    if d.parses:  # It reads a number faster than a time.
        simple["scheduled_for"] = d.sortable("job_runs.scheduled_for")
    columns = ", ".join(f"{simple.get(name, f'job_runs.{name}')} AS {name}" for name in CLAIMED)
    return f"{columns}, NULL AS stored"


def _take(d: Dialect) -> str:
    # PostgreSQL looks up the few by their index: see `db.statements`.
    by_index = f"{d.any_of('job_runs.id', 'SELECT id FROM chosen')} AND" if d.one_statement else ""
    return f"""
    UPDATE job_runs SET
        status = 'running', attempts = job_runs.attempts + 1,
        {begun(d)},
        concurrency_share = chosen.share, progress = NULL, progress_message = NULL
    FROM chosen WHERE {by_index} job_runs.id = chosen.id
    RETURNING {returned(d)}
    """


# Where the values are in a row, since to look for their names takes too long.
_OF_CLAIM = CLAIMED.index("rank")
_TASK = itemgetter(CLAIMED.index("job_type"))
_PLACE = itemgetter(*(CLAIMED.index(name) for name in ("rank", "run_at", "id")))


def received(dialect: Dialect, rows: Rows, token: str) -> Answer:
    """Return the claims and the recorded outcomes in *rows*.

    :param token: the token of the claims.
    """
    claimed = [row for row in rows if _TASK(row) is not None]
    claimed.sort(key=_PLACE)
    others = [row for row in rows if _TASK(row) is None]
    found = _recorded_at_once(others) if dialect.one_statement else recorded_in(others)
    return found._replace(claims=tuple([_claim(row, token) for row in claimed]))


def recorded_in(rows: Rows) -> Answer:
    """Return the recorded outcomes in *rows*, one for each run."""
    return Answer(
        recorded=frozenset([row.id for row in rows]),
        cancelled=frozenset([row.id for row in rows if row.stored == "cancelled"]),
    )


def _recorded_at_once(rows: Rows) -> Answer:
    ids = {row.stored: frozenset(map(int, row.ids.split(","))) for row in rows}
    return Answer(
        recorded=frozenset[int]().union(*ids.values()),
        cancelled=ids.get("cancelled", frozenset()),
    )


def _claim(row: Sequence[Any], token: str) -> Claim:
    claim = Claim._make((row[0], token, *row[1:_OF_CLAIM]))
    if type(claim.max_attempts) is int:
        return claim
    return claim._replace(max_attempts=most_attempts(claim.max_attempts, claim.attempt))


def most_attempts(most: object, attempts: object) -> int:
    """Return ``max_attempts``; if it is no number, which SQLite accepts, the attempts so far."""
    return most if isinstance(most, int) else int(str(attempts))
