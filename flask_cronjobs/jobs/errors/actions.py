"""What an operator decides about a group of errors: resolve, mute, reopen it; retry its runs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from ...errors import NotFound
from ...log import DEFAULT_ACTOR
from ..operations.rows import Act, perform
from ..runs.actions import BulkResult, retrying
from ..runs.filters import RunFilter
from ..state import State

#: For how many seconds a group is muted by default: a week.
MUTED_FOR = 7 * 86400.0
#: The longest time, so that no date is past what a database holds.
_LONGEST = 3650 * 86400.0


def resolve(state: State, fingerprint: str, actor: str = DEFAULT_ACTOR) -> None:
    """Count a group of errors as resolved, until it is seen again.

    :raises NotFound: no failed attempt that is kept has this fingerprint.
    """
    _decide(state, fingerprint, "resolved", actor, resolved="{now}")


def mute(
    state: State, fingerprint: str, actor: str = DEFAULT_ACTOR, seconds: float = MUTED_FOR
) -> None:
    """Take a group of errors out of the open ones for *seconds*, though it is seen again.

    :raises NotFound: no failed attempt that is kept has this fingerprint.
    """
    _decide(state, fingerprint, "muted", actor, muted="{later}", seconds=min(seconds, _LONGEST))


def reopen(state: State, fingerprint: str, actor: str = DEFAULT_ACTOR) -> None:
    """Count a group of errors as open, whatever was decided before.

    :raises NotFound: no failed attempt that is kept has this fingerprint.
    """
    _decide(state, fingerprint, "reopened", actor)


def retry_group(
    state: State,
    fingerprint: str,
    actor: str = DEFAULT_ACTOR,
    spread: float = 0.0,
    most: int | None = None,
) -> BulkResult:
    """Queue the dead runs of a group of errors again.

    :param spread: let them be due within so many seconds, so that what broke is not flooded.
    :param most: at most so many.
    """
    which = RunFilter(status="dead", fingerprint=fingerprint)
    return retrying(spread).many(state, which, actor, most=most)


def _decide(
    state: State,
    fingerprint: str,
    what: str,
    actor: str,
    resolved: str = "NULL",
    muted: str = "NULL",
    seconds: float = 0.0,
) -> None:
    """Write down a decision, in place of one that was made before.

    :param resolved: SQL for ``resolved_at``, as *muted* is for ``muted_until``.
    """
    with state.bookkeeping() as books:
        d = books.dialect
        later = d.later(":seconds")
        times = (each.format(now=d.now, later=later) for each in (resolved, muted))
        at = (d.typed(each, "timestamptz") for each in times)
        statement = f"""
            INSERT INTO job_error_groups
                (fingerprint, resolved_at, muted_until, changed_at, changed_by)
            SELECT {d.typed(":fingerprint", "text")}, {", ".join(at)}, {d.now},
                {d.typed(":actor", "text")}
            WHERE EXISTS (SELECT 1 FROM job_failures WHERE fingerprint = :fingerprint)
            ON CONFLICT (fingerprint) DO UPDATE SET resolved_at = excluded.resolved_at,
                muted_until = excluded.muted_until, changed_at = excluded.changed_at,
                changed_by = excluded.changed_by
            RETURNING id
        """
        given: dict[str, Any] = {"fingerprint": fingerprint, "actor": actor}
        if "{later}" in muted:
            given["seconds"] = seconds
        act = Act(what, f"errors of group {fingerprint}", actor)
        if not perform(books, act, lambda inner: inner.rows(text(statement), given)):
            raise NotFound(
                f"No failed attempt that is kept is of the group {fingerprint!r}. To list the "
                "groups: flask jobs admin errors"
            )
