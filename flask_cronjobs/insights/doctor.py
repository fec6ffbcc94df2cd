"""Check the app's jobs and database; report each problem with advice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import Row

from ..core.app_state import State
from ..core.ticks import CLOCK_TOLERANCE_SECONDS
from ..db.dialect import clock_shift
from ..db.engines import IN_MEMORY, is_in_memory
from ..db.errors import LEARN_MORE, name_of
from ..errors import CronJobsError, SetupError
from ..text.humanize import duration
from .doctor_database import database, executors, schema, versions
from .doctor_rights import rights
from .health import Verdict, read_verdict
from .health_checks import Finding, last_tick
from .reader import Reader, reading
from .tick_views import list_ticks

_TICKS = 100


def examine(state: State) -> tuple[Finding, ...]:
    """Run all checks; report an unreadable database as a finding, too."""
    findings: list[Finding] = []
    try:
        with reading(state) as reader:
            findings.extend(_examine(reader))
    except SetupError as error:
        findings.append(Finding("database", "error", str(error)))
    except CronJobsError as error:
        todo = (
            f"Check the database and its URL, which is {name_of(state.engine)} here. Then run the "
            "doctor again."
        )
        findings.append(Finding("database", "error", str(error).removesuffix(LEARN_MORE), todo))
    return tuple(findings)


def _examine(reader: Reader) -> Iterator[Finding]:
    yield versions(reader)
    if is_in_memory(reader.connection.engine):
        yield Finding("database", "error", IN_MEMORY)
        return
    errors: set[str] = set()
    for check, needs in _CHECKS:
        if errors.isdisjoint(needs):
            for finding in check(reader):
                errors |= {finding.id} if finding.level == "error" else set()
                yield finding


def _jobs(reader: Reader) -> Iterator[Finding]:
    yield from _verdict(read_verdict(reader), _ticked_by(last_tick(reader)))
    yield _own_clock(reader)
    yield from _host_clocks(list_ticks(reader, _TICKS).rows)
    yield from executors(reader)


def _ticked_by(tick: Row[Any]) -> str:
    if not tick.resident:
        return "`flask jobs tick`"
    server = (tick.version or "").partition(" ")[2]
    return f"`flask jobs work`{server and f', which {server} started'}"


#: The checks, each with the checks that must pass before it.
_CHECKS: tuple[tuple[Callable[[Reader], Iterator[Finding]], tuple[str, ...]], ...] = (
    (database, ()),
    (schema, ()),
    (rights, ("tables", "columns", "read-only", "encoding")),
    (_jobs, ("tables", "columns", "rights")),
)


def _own_clock(reader: Reader) -> Finding:
    # reader.now was read earlier, so read the time again.
    before = time.time()
    fresh = Reader(reader.state, reader.connection).now.timestamp()
    offset = (before + time.time()) / 2 - fresh + clock_shift()
    if abs(offset) <= CLOCK_TOLERANCE_SECONDS:
        return Finding("clock", "ok", "this host's clock agrees with the database's")
    return Finding("clock", "warning", f"This host's clock is {_off(offset)}", _CLOCK_TODO)


_CLOCK_TODO = (
    "Set up NTP on it. Runs are on time, since they follow the database's clock, but logs and "
    "handlers use this host's."
)


def _off(offset: float) -> str:
    return f"{duration(offset)} {'ahead of' if offset > 0 else 'behind'} the database's"


def _host_clocks(recent: Sequence[Row[Any]]) -> Iterator[Finding]:
    """Check the clocks of other hosts, as their latest ticks recorded them."""
    measured = (tick for tick in reversed(recent) if tick.clock_offset is not None)
    latest = {tick.host: tick.clock_offset or 0.0 for tick in measured}
    for host, offset in sorted(latest.items()):
        if abs(offset) > CLOCK_TOLERANCE_SECONDS:
            what = f"The clock of {host} was {_off(offset)} at its last tick"
            yield Finding("host-clock", "warning", what, _CLOCK_TODO)


def _verdict(verdict: Verdict, by: str) -> Iterator[Finding]:
    """Yield the findings of the verdict; *by* names the command that ticked last."""
    ids = {finding.id for finding in verdict.findings}
    if "ticks" not in ids:
        yield Finding("ticks", "ok", f"{verdict.ticks}, by {by}")
    if "overdue" not in ids:
        yield Finding("overdue", "ok", "no run has waited too long")
    yield from verdict.findings
