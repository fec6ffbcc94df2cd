"""What a handler leaves in ``db.session`` without a commit, and so loses when its context ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

_WRITTEN = "cronjobs_written"
#: Statements that write. A run's own INSERT is left out: it is named as an enqueued run.
_WRITES = r"""(?isx) \s{0,99} (?: (INSERT|UPDATE|DELETE|REPLACE|MERGE)\b (?! [ ]INTO[ ]job_runs\b)
        | WITH\b .*? \b(?<!FOR[ ])(?<!KEY[ ])
          (INSERT(?=\sINTO\s)|UPDATE(?=\s)|DELETE(?=\sFROM\s)|MERGE(?=\sINTO\s)) )"""
_SAVEPOINT = r"(?i)\s{0,99}(SAVEPOINT|ROLLBACK TO(?: SAVEPOINT)?)\s+(\S+)"


def watch_writes(session_factory: Any, in_run: Callable[[], bool]) -> None:
    """Let the sessions of *session_factory* count what is written inside a run.

    Outside a run, and in one that does not use the session, this costs nothing.

    :param in_run: returns whether a handler is at work here.
    """

    def begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
        if transaction.parent is None and in_run():
            _watch(session, transaction, connection)

    event.listen(session_factory, "after_begin", begin)


def left_in(session_registry: Any) -> str | None:
    """Return what is uncommitted in the session of the current context; None if nothing is."""
    if not session_registry.registry.has():
        return None
    session: Session = session_registry()
    changed = sum(map(session.is_modified, session.dirty))
    objects = {"new": len(session.new), "changed": changed, "deleted": len(session.deleted)}
    written: _Written | None = session.info.get(_WRITTEN)
    current = written is not None and session.get_transaction() is written.transaction
    statements = written.counts if written is not None and current else Counter[str]()
    parts = (_listed(objects, "object"), _listed(statements, "statement"))
    return " and ".join(filter(None, parts)) or None


class _Written:
    """How many statements that write were sent in one transaction."""

    def __init__(self, transaction: SessionTransaction) -> None:
        self.transaction = transaction
        self.counts: Counter[str] = Counter()
        self._before: dict[str, Counter[str]] = {}

    def note(self, _: object, __: object, statement: str, *___: object) -> None:
        """Count *statement*. What was written since a savepoint goes with its rollback."""
        if found := re.match(_WRITES, statement):
            self.counts[(found[1] or found[2]).upper()] += 1
        elif found := re.match(_SAVEPOINT, statement):
            if found[1].upper() == "SAVEPOINT":
                self._before[found[2]] = self.counts.copy()
            else:
                self.counts = self._before.get(found[2], self.counts).copy()


def _watch(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    written: _Written | None = session.info.get(_WRITTEN)
    if written is None or written.transaction is not transaction:
        written = session.info[_WRITTEN] = _Written(transaction)
    event.listen(connection, "after_cursor_execute", written.note)


def _listed(counts: dict[str, int], what: str) -> str:
    said = [f"{count} {name}" for name, count in counts.items() if count]
    plural = "" if sum(counts.values()) == 1 else "s"
    return f"{', '.join(said)} {what}{plural}" if said else ""
