"""Check the app's jobs and database: what is wrong, and what to do about it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from flask import Flask
from sqlalchemy import Row, select
from werkzeug.exceptions import HTTPException

from ..db.dialect import clock_shift
from ..db.engines import IN_MEMORY, is_in_memory
from ..db.errors import LEARN_MORE, name_of
from ..errors import CronJobsError, SetupError
from .checks import CHECK_IMPORT, Finding
from .definitions.needs import unrecorded
from .definitions.views import DefinitionView, bare_definitions
from .doctor_database import database, executors, schema, versions
from .health import Verdict, read_verdict
from .humanize import duration, plural
from .reader import DEFINITIONS, Reader, reading
from .state import State
from .ticks import CLOCK_TOLERANCE, list_ticks

#: The shortest lease without a warning, in seconds: a busy handler (a long regular expression, say)
#: can stop the thread that renews the lease for seconds.
_LEASE = 60.0
_TICKS = 100
#: How many definitions with the same fault are named.
_NAMED = 5


def examine(state: State) -> tuple[Finding, ...]:
    """Run all checks; a database that cannot be read is a finding, too."""
    findings: list[Finding] = []
    try:
        with reading(state) as reader:
            findings.extend(_examine(reader))
    except SetupError as error:
        findings.append(Finding("database", "error", str(error)))
    except CronJobsError as error:
        todo = (
            f"Check the database, and SQLALCHEMY_DATABASE_URI, which is "
            f"{name_of(state.engine)} here. Then run this again."
        )
        findings.append(Finding("database", "error", str(error).removesuffix(LEARN_MORE), todo))
    return tuple(findings)


def _examine(reader: Reader) -> Iterator[Finding]:
    yield versions(reader)
    if is_in_memory(reader.connection.engine):
        yield Finding("database", "error", IN_MEMORY)
        return
    yield from database(reader)
    found = list(schema(reader))
    yield from found
    errors = {finding.id for finding in found if finding.level == "error"}
    if errors.isdisjoint(("tables", "columns")):
        yield from _jobs(reader)


def _jobs(reader: Reader) -> Iterator[Finding]:
    verdict = read_verdict(reader)
    yield from _verdict(verdict)
    yield _own_clock(reader)
    yield from _host_clocks(list_ticks(reader, _TICKS).rows)
    yield _tasks(reader)
    yield from _definitions(reader, verdict)
    yield from _settings(reader)
    yield from _hidden_pages(reader.state.app, reader.state.settings.url_prefix)
    yield from executors(reader)


def _own_clock(reader: Reader) -> Finding:
    # reader.now was read earlier, so read the time again.
    before = time.time()
    fresh = Reader(reader.state, reader.connection).now.timestamp()
    offset = (before + time.time()) / 2 - fresh + clock_shift()
    if abs(offset) <= CLOCK_TOLERANCE:
        return Finding("clock", "ok", "this host's clock agrees with the database's")
    return Finding("clock", "warning", f"This host's clock is {_off(offset)}", _CLOCK_TODO)


_CLOCK_TODO = "Set up NTP there. Jobs use the database's time, but logs and handlers do not."


def _off(offset: float) -> str:
    return f"{duration(offset)} {'ahead of' if offset > 0 else 'behind'} the database's"


def _host_clocks(recent: Sequence[Row[Any]]) -> Iterator[Finding]:
    """Check the clocks of other hosts by their latest ticks."""
    measured = (tick for tick in reversed(recent) if tick.clock_offset is not None)
    latest = {tick.host: tick.clock_offset or 0.0 for tick in measured}
    for host, offset in sorted(latest.items()):
        if abs(offset) > CLOCK_TOLERANCE:
            what = f"The clock of {host} was {_off(offset)} at its last tick"
            yield Finding("host-clock", "warning", what, _CLOCK_TODO)


def _verdict(verdict: Verdict) -> Iterator[Finding]:
    """Yield what the verdict says, too."""
    named = {each.id for each in verdict.findings}
    if "ticks" not in named:
        yield Finding("ticks", "ok", verdict.ticks)
    if "overdue" not in named:
        yield Finding("overdue", "ok", "no run has waited too long")
    yield from verdict.findings


def _tasks(reader: Reader) -> Finding:
    tasks = reader.state.registry.tasks
    if tasks:
        return Finding("tasks", "ok", f"this app's code declares {plural(len(tasks), 'task')}")
    todo = "Import the modules that declare tasks where the app is created, such as its factory."
    return Finding("tasks", "warning", "This app's code declares no task: nothing can run", todo)


def _definitions(reader: Reader, verdict: Verdict) -> Iterator[Finding]:
    views = list(bare_definitions(reader))
    found = [each for view in views for each in (*_definition(view), *_overwritten(reader, view))]
    sound = f"{plural(len(views), 'definition')}, none broken"
    yield from _some_of_each(found) if found else [Finding("definitions", "ok", sound)]
    if verdict.word not in ("never", "late"):
        yield from _unrecorded(reader)
    yield from _same_name(reader)
    yield from _other_apps(reader, views)


def _some_of_each(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield some findings of each kind, and how many more there are."""
    kind = attrgetter("id", "level")
    for (name, level), same in groupby(sorted(findings, key=kind), kind):
        several = list(same)
        yield from several[:_NAMED]
        if more := several[_NAMED:]:
            todo = "To list them: flask jobs admin definitions"
            yield Finding(name, level, f"and {len(more):,} more", todo)


def _unrecorded(reader: Reader) -> Iterator[Finding]:
    if names := unrecorded(reader):
        yield Finding(
            "unrecorded-definition",
            "warning",
            "Ticks come, but none has recorded the definition "
            + _first_of(names, "nor {} more that this app's code declares"),
            f"If it was deployed more than a minute ago: {CHECK_IMPORT}",
        )


def _first_of(names: Sequence[str], others: str) -> str:
    return repr(names[0]) + (f", {others.format(len(names) - 1)}" if len(names) > 1 else "")


def _same_name(reader: Reader) -> Iterator[Finding]:
    """Check whether another app ticks under this one's name, by which apps are told apart."""
    app, c = reader.state.app.name, DEFINITIONS.c
    marked = select(c.name).where(c.app == app, c.undeclared_since.is_not(None)).order_by(c.name)
    declared = reader.state.registry.declarations
    if names := [row.name for row in reader.rows(marked) if row.name in declared]:
        yield Finding(
            "same-name",
            "warning",
            f"Code of an app that is called {app!r}, too, has ticked since, and does not declare "
            "the definition " + _first_of(names, "nor {} more of this app's"),
            "If that is another app, slots of the one that ticks less often are skipped: give each "
            "a name of its own, as in Flask('shop'). If it is old code, stop its ticks.",
        )


def _other_apps(reader: Reader, views: Sequence[DefinitionView]) -> Iterator[Finding]:
    apps: dict[str, list[str]] = {}
    for view in views:
        if view.elsewhere and view.app not in (None, reader.state.app.name):
            apps.setdefault(str(view.app), []).append(view.name)
    for app, names in sorted(apps.items()):
        yield Finding(
            "two-apps",
            "warning",
            f"The app {app!r} uses this database too, for the definition "
            + _first_of(names, "and {} more"),
            "A tick of one app runs every task that it knows by name, of the other app too. If the "
            "tasks, definitions and keys of the two apps have different names, there is nothing to "
            "do. Otherwise rename those of one, or give each app a database.",
        )


def _overwritten(reader: Reader, view: DefinitionView) -> Iterator[Finding]:
    declaration = reader.state.registry.declarations.get(view.name)
    if declaration is None or view.app in (None, reader.state.app.name):
        return
    spec = declaration.spec(reader.state.settings)
    if (spec.job_type, spec.schedule, spec.timezone) != (view.task, view.schedule, view.timezone):
        yield Finding(
            "overwritten-definition",
            "warning",
            f"The app {view.app!r} declares the definition {view.name!r} otherwise than this app: "
            "each tick overwrites what the other app's wrote",
            "Give one of them another name, or each app a database.",
        )


def _definition(view: DefinitionView) -> Iterator[Finding]:
    remove = f"flask jobs admin remove {shlex.quote(view.name)}"
    if view.broken is not None:
        what = f"The definition {view.name!r} is broken and never due: {view.broken}"
        yield Finding("broken-definition", "error", what, f"Fix its row, or run: {remove}")
    if view.elsewhere:
        return
    if view.orphaned:
        yield Finding(
            "orphaned-definition",
            "warning",
            f"The definition {view.name!r} is for the task {view.task!r}, which this app's code "
            "does not declare: none of its slots is recorded",
            f"Declare the task, import the module that does, or run: {remove}",
        )
    elif view.undeclared:
        yield Finding(
            "undeclared-definition",
            "info",
            f"The definition {view.name!r} came from code that no longer declares it: none of its "
            "slots is recorded",
            f"If that is intended, and no other app of this name declares it, run: {remove}",
        )


def _settings(reader: Reader) -> Iterator[Finding]:
    lease = reader.state.settings.lease
    if lease < _LEASE:
        what = f"CRONJOBS_LEASE is {duration(lease)}: a busy handler can lose its run"
        yield Finding("lease", "warning", what, f"Set it to {_LEASE:g} seconds or more.")


def _hidden_pages(app: Flask, prefix: str | None) -> Iterator[Finding]:
    """Check whether pages of ours and of the app have the same URL."""
    if prefix is None or app.url_map.host_matching:
        return
    urls = app.url_map.bind("localhost")
    for rule in app.url_map.iter_rules():
        if "<" in rule.rule or not f"{rule.rule}/".startswith(f"{prefix}/"):
            continue
        method = min((rule.methods or {"GET"}) - {"HEAD", "OPTIONS"}, default="GET")
        try:
            shown, _ = urls.match(rule.rule, method)
        except HTTPException:
            continue
        if shown != rule.endpoint:
            yield Finding(
                "hidden-page",
                "warning",
                f"At {rule.rule} there are two pages, of the endpoints {shown} and "
                f"{rule.endpoint}: the first hides the second",
                "Set CRONJOBS_URL_PREFIX to a path that the app does not use, such as '/cronjobs'.",
            )
