"""Whether an enqueue that is committed at once can be a transaction of one statement.

``using(commit=True)`` promises a commit of ``db.session``. If that has nothing to commit yet, the
INSERT alone does the same, in one exchange with the server, where BEGIN and COMMIT take one each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from sqlalchemy import Engine
from sqlalchemy.orm import Session

#: Listeners to the beginning of transactions that need not hear of an enqueue.
indifferent: WeakSet[Callable[..., Any]] = WeakSet()


def can_autocommit(session: Session, bind_arguments: dict[str, Any]) -> bool:
    """Return whether nobody can tell one statement in autocommit from a transaction of *session*.

    Not if the session is in one, or is bound to a connection, which may be; and not if the app
    listens to how transactions begin or to what comes before their commit. It may set there, for
    the length of the transaction, who may see which tables, or refuse the commit.

    On SQLite nothing is sent to a server, so there it is never done.
    """
    if session.in_transaction() or session.twophase:
        return False
    engine = session.get_bind(**bind_arguments)
    if not isinstance(engine, Engine) or engine.dialect.name != "postgresql":
        return False
    listeners = (*session.dispatch.after_begin, *session.dispatch.before_commit)
    engine_listens = engine.dispatch.begin or engine.dispatch.commit
    return not engine_listens and all(listener in indifferent for listener in listeners)
