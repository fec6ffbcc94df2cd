"""Warn of runs that were enqueued and never committed, and of a handler's uncommitted work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from flask import g, has_app_context
from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from ..db.database import Database
from ..db.transactions import commits_by_itself
from .current import run_here, warn

if TYPE_CHECKING:
    from .app_state import State

_UNCOMMITTED = "_cronjobs_uncommitted"
#: The app contexts with a note in ``g``. Every run ends a context, but few have a note, and looking
#: into ``g`` takes longer than checking whether this set is empty.
_noted: set[int] = set()
#: Further functions that warn when an app context ends, by context as in `_noted`.
_at_end: dict[int, list[Callable[[], None]]] = {}
_COMMIT_RUNS = "Call db.session.commit() after enqueue(), or use task.using(commit=True)."
_COMMIT_WORK = "Call db.session.commit() at the end of the handler, or give its task atomic=True."


def watch_commits(state: State) -> None:
    """Warn when an app context ends with enqueued runs that were never committed.

    Inside a run, warn of all uncommitted work, and write the warning to the run's row.
    """
    app, db = state.app, state.db

    @app.teardown_appcontext
    def warn_of_uncommitted(error: BaseException | None) -> None:
        names = _listed([note.what for note in _take_notes()]) if _noted else ""
        warnings = _at_end.pop(_context(), []) if _at_end else []
        if error is not None:
            return
        run = run_here.get(None)
        if run is not None:
            for callback in run.at_end:
                callback()
        for callback in warnings:
            callback()
        work = left_in(db) if run is not None else None
        if run is not None and work:
            warning = f"Ended with uncommitted work in db.session, so it is lost: {work}."
            warning += f" Enqueued and never committed, so lost: {names}." if names else ""
            run.warn(f"{warning} {_COMMIT_WORK}")
        elif names and not _session_commits_by_itself(db):
            warn(f"Enqueued and never committed, so lost: {names}. {_COMMIT_RUNS}")


def _session_commits_by_itself(db: Database) -> bool:
    """Return whether the session of the current context has an engine in AUTOCOMMIT."""
    session = db.open_session()
    if session is None or not (session.is_active and session.in_transaction()):
        return False
    return commits_by_itself(session.connection({"bind": session.get_bind()}))


def uncommitted_runs() -> str:
    """Return the runs that this context has enqueued and not committed, as a text."""
    return _listed([note.what for note in g.get(_UNCOMMITTED, [])])


def uncommitted(db: Database) -> str | None:
    """Return what this context has not committed: enqueued runs, and other work; None if nothing.

    Outside a run, statements that do not come from the session's objects are not noticed.
    """
    runs, work = uncommitted_runs(), left_in(db)
    return " and ".join(filter(None, (runs and f"enqueued runs ({runs})", work))) or None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if names[10:] else "")


class _Note(NamedTuple):
    """Runs that were enqueued in a transaction, perhaps in a savepoint of it."""

    transaction: SessionTransaction | None
    savepoint: SessionTransaction | None
    what: str


def note_enqueued(session: Session, what: str) -> None:
    """Note that *what* was enqueued in this context by *session*, and is not committed yet."""
    _noted.add(_context())
    note = _Note(session.get_transaction(), session.get_nested_transaction(), what)
    g.setdefault(_UNCOMMITTED, []).append(note)


def warn_at_end(warning: Callable[[], None]) -> None:
    """Call *warning* when this app context ends, unless an error ends it."""
    _at_end.setdefault(_context(), []).append(warning)


def _take_notes() -> list[_Note]:
    _noted.discard(_context())
    notes: list[_Note] = g.pop(_UNCOMMITTED, [])
    return notes


def _context() -> int:
    return id(g._get_current_object())


# This listens to all sessions, since a test may replace db.session.
@event.listens_for(Session, "after_commit")
@event.listens_for(Session, "after_rollback")
def _forget_uncommitted(session: Session) -> None:
    # Ignore the end of a savepoint, since the outer transaction may still be rolled back.
    if session.in_nested_transaction():
        return
    if has_app_context() and _noted:
        # Keep the notes of other transactions: their runs are lost, since the session was removed
        # or closed.
        ended_transactions = (session.get_transaction(), None)
        _keep([note for note in _take_notes() if note.transaction not in ended_transactions])


@event.listens_for(Session, "after_soft_rollback")
def _forget_rolled_back(session: Session, ended: SessionTransaction) -> None:
    # The runs of a savepoint that was rolled back are not lost by mistake.
    if ended.nested and has_app_context() and _noted:
        _keep([note for note in _take_notes() if not _is_within(note.savepoint, ended)])


def _is_within(savepoint: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while savepoint is not None and savepoint is not outer:
        savepoint = savepoint.parent
    return savepoint is outer


def _keep(notes: list[_Note]) -> None:
    if notes:
        _noted.add(_context())
        setattr(g, _UNCOMMITTED, notes)


_WRITTEN = "cronjobs_written"
#: Statements that write. A run's own INSERT is left out: it is named as an enqueued run.
_WRITES = r"""(?isx) \s{0,99} (?: (INSERT|UPDATE|DELETE|REPLACE|MERGE)\b (?! [ ]INTO[ ]job_runs\b)
        | WITH\b .*? \b(?<!FOR[ ])(?<!KEY[ ])
          (INSERT(?=\sINTO\s)|UPDATE(?=\s)|DELETE(?=\sFROM\s)|MERGE(?=\sINTO\s)) )"""
_SAVEPOINT = r"(?i)\s{0,99}(SAVEPOINT|ROLLBACK TO(?: SAVEPOINT)?)\s+(\S+)"


def left_in(db: Database) -> str | None:
    """Return what is uncommitted in the session of the current context; None if nothing is."""
    session = db.open_session()
    if session is None:
        return None
    changed = sum(map(session.is_modified, session.dirty))
    objects = {"new": len(session.new), "changed": changed, "deleted": len(session.deleted)}
    counter: _Written | None = session.info.get(_WRITTEN)
    current = counter is not None and session.get_transaction() is counter.transaction
    statements = counter.counts if counter is not None and current else Counter[str]()
    parts = (_numbers(objects, "object"), _numbers(statements, "statement"))
    return " and ".join(filter(None, parts)) or None


class _Written:
    """Counts the writing statements of one transaction."""

    def __init__(self, transaction: SessionTransaction) -> None:
        self.transaction = transaction
        self.counts: Counter[str] = Counter()
        self._before: dict[str, Counter[str]] = {}

    def note(self, _: object, __: object, statement: str, *___: object) -> None:
        """Count *statement*. Rolling back to a savepoint undoes what was counted since."""
        if match := re.match(_WRITES, statement):
            self.counts[(match[1] or match[2]).upper()] += 1
        elif match := re.match(_SAVEPOINT, statement):
            if match[1].upper() == "SAVEPOINT":
                self._before[match[2]] = self.counts.copy()
            else:
                self.counts = self._before.get(match[2], self.counts).copy()


#: The sessionmakers that `watch_writes` watches. `event.contains` compares ids, which are reused.
_watched: WeakSet[sessionmaker[Session]] = WeakSet()


def watch_writes(db: Database) -> None:
    """Count from now on what handlers write in the app's sessions.

    Call it in processes that execute runs.
    """
    factory = db.sessionmaker
    if factory not in _watched:
        _watched.add(factory)
        event.listen(factory, "after_begin", _watch)


def _watch(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if transaction.parent is not None or run_here.get(None) is None:
        return
    if commits_by_itself(connection):
        return  # Nothing is lost, whatever the handler leaves.
    counter: _Written | None = session.info.get(_WRITTEN)
    if counter is None or counter.transaction is not transaction:
        counter = session.info[_WRITTEN] = _Written(transaction)
    event.listen(connection, "after_cursor_execute", counter.note)


def _numbers(counts: dict[str, int], what: str) -> str:
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    plural = "" if sum(counts.values()) == 1 else "s"
    return f"{', '.join(parts)} {what}{plural}" if parts else ""
