"""``once``: call a function whose effect outside the database must not happen twice.

A mark is committed before the effect and its result after it, on a connection separate from
``db.session``. If the process dies in between, no library can know whether the effect happened. It
is then *in doubt*, and the caller decides what to do.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple, TypeVar, cast

from flask import Flask
from sqlalchemy.exc import OperationalError

from ...core.app_state import State
from ...core.current import running
from ...core.tasks.options import check_function, check_key
from ...core.tasks.payload import close_unrun, kept_result
from ...db import failpoints
from ...db.connection import Bookkeeping
from ...db.transactions import refusing_own_lock, session_holds_lock
from ...errors import (
    CronJobsError,
    DatabaseTrouble,
    EffectInDoubt,
    Interruption,
    LeaseLost,
    SetupError,
    TaskError,
)
from ...log import logger
from ...types import JSON, InDoubt, json_text
from . import once_effects

T = TypeVar("T")

#: Seconds that a caller waiting for another one sleeps between checks: at first, and at most.
FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.05, 1.0
#: Seconds that a result waits for SQLite's lock before we assume that the session itself holds it.
#: Other processes hold it for some milliseconds.
OWN_LOCK_SECONDS = 0.1

#: The effects whose function is being called in this context.
_inside: ContextVar[frozenset[tuple[Flask, str]]] = ContextVar(
    "flask_cronjobs.features.once.once", default=frozenset()
)
#: The calls of `once` that are in progress in runs: an object for each, by token and key.
_doing: dict[tuple[str, str], object] = {}


class _Effect(NamedTuple):
    """An effect, and the connection that writes its mark.

    :ivar owner: the token of the run's claim, or a token made for this effect outside a run.
    """

    state: State
    books: Bookkeeping
    key: str
    owner: str
    run_id: int | None


def once(
    state: State,
    key: str,
    func: Callable[..., T],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    in_doubt: InDoubt,
) -> T | None:
    """Call *func* for the effect *key*, unless that was done before.

    1. Insert the mark. If it exists, return the recorded result, wait for its owner, or resolve the
       doubt.
    2. Call *func*. If it raises an `Exception`, delete the mark, so that a retry calls it again. If
       it is interrupted from outside (timeout, cancel, shutdown, SystemExit), leave the effect in
       doubt.
    3. Record the result.
    """
    _check(key, func, in_doubt)
    with _entered(state, key), _owning(state, key) as effect:
        if (recorded := _begin(effect, in_doubt)) is not None:
            return cast("T | None", recorded[0])
        failpoints.reach("before-effect")
        value = _call(effect, partial(func, *args, **kwargs))
        failpoints.reach("after-effect")
        stored_value = kept_result(value, state.settings, f"once({key!r})")
        if stored_value is not None:
            # Return the value that a later call will read.
            value = cast("T", json.loads(json_text(stored_value)))
        if not _record(effect, stored_value):
            _overtaken(effect)
        return value


def _check(key: object, func: object, in_doubt: object) -> None:
    check_key("once: the key", key, 500)
    if in_doubt not in ("skip", "redo", "raise"):
        raise TaskError(f"once: in_doubt is {in_doubt!r}. Write 'skip', 'redo' or 'raise'.")
    # Check this before inserting the mark: if the argument is not a function, the caller has called
    # it already, so the effect has happened, and would happen again on each retry.
    check_function(f"once({key!r})", func, "once(key, charge, order_id)")


@contextmanager
def _entered(state: State, key: str) -> Generator[None]:
    """Refuse an effect inside itself, which would wait for itself."""
    outer, effect_id = _inside.get(), (state.app, key)
    if effect_id in outer:
        raise SetupError(
            f"once({key!r}) is called inside itself. Call the inner function directly, or give "
            "the inner effect another key."
        )
    token = _inside.set(outer | {effect_id})
    try:
        yield
    finally:
        _inside.reset(token)


@contextmanager
def _owning(state: State, key: str) -> Generator[_Effect]:
    """Yield the effect with its owner, and with the connection to use in this thread."""
    run = running()
    if run is not None:
        run.raise_again()
    # A handler may call it in another app's context, whose database does not have the run.
    if run is None or run.app is not state.app:
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
        with state.bookkeeping(guard=run.books.guard if run else nullcontext) as books:
            yield _Effect(state, books, key, owner, None)
        return
    # Only the handler's first thread may use the run's own connection.
    is_first_thread = run.thread == threading.get_ident()
    connected: AbstractContextManager[Bookkeeping]
    connected = nullcontext(run.books) if is_first_thread else state.bookkeeping()
    with _alone(run.claim.token, key), connected as books:
        yield _Effect(state, books, key, run.claim.token, run.claim.id)


@contextmanager
def _alone(owner: str, key: str) -> Generator[None]:
    """Refuse a second thread of a run that uses *key* at the same time, with the same owner.

    :raises SetupError: another thread is inside.
    """
    ours, call_id = object(), (owner, key)
    if _doing.setdefault(call_id, ours) is not ours:
        raise SetupError(
            f"once({key!r}) is called while another thread of this run is calling it. Call it in "
            "one thread, or give each call a key of its own."
        )
    try:
        yield
    finally:
        del _doing[call_id]


def _refusing_own_lock(effect: _Effect) -> AbstractContextManager[None]:
    trouble, when = "once() cannot write to job_effects", "before calling once()"
    return refusing_own_lock(effect.state.db.session(), effect.books, trouble, when)


def _begin(effect: _Effect, in_doubt: InDoubt) -> tuple[object] | None:
    """Insert the mark; return None if we must do the effect, otherwise a tuple with its result."""
    books, key, owner, lease = effect.books, effect.key, effect.owner, effect.state.settings.lease
    pause, took_over = FIRST_WAIT_SECONDS, False
    try:
        with _refusing_own_lock(effect):
            while True:
                mark = once_effects.begin(books, key, owner, effect.run_id, lease)
                if mark.state == "mine":
                    return None
                if mark.state == "done":
                    return (mark.result,)
                if mark.state == "lost":
                    raise LeaseLost(
                        f"once({key!r}): the run's lease was lost, so the effect was not begun"
                    )
                if mark.state == "busy" and mark.owner != owner:
                    time.sleep(pause)
                    pause = min(pause * 2, MAX_WAIT_SECONDS)
                    continue
                once_effects.doubt(books, key, mark.owner)
                if in_doubt != "redo":
                    return _leave_in_doubt(key, in_doubt)
                took_over = True
                if once_effects.take_over(books, key, mark.owner, owner, effect.run_id, lease):
                    logger.warning(
                        "once(%r): in doubt; doing it again, since in_doubt is 'redo'", key
                    )
                    return None
                took_over = False
    except (Interruption, KeyboardInterrupt, SystemExit):
        # We have not begun the effect. If we took over a doubtful one, it is in doubt as before.
        with suppress(CronJobsError):
            (once_effects.doubt if took_over else once_effects.withdraw)(books, key, owner)
        raise


def _leave_in_doubt(key: str, in_doubt: InDoubt) -> tuple[None]:
    if in_doubt == "raise":
        raise EffectInDoubt(
            f"The effect {key!r} is in doubt: its process died, or the call was interrupted, "
            "before the result was recorded. Find out whether it was done, then run: flask jobs "
            "admin effects --done KEY, or --redo KEY"
        )
    logger.warning("once(%r): in doubt, and skipped. See: flask jobs admin effects", key)
    return (None,)


def _call(effect: _Effect, call: Callable[[], T]) -> T:
    try:
        return _run_to_its_end(effect.key, call())
    except Exception:
        try:
            _remove(effect)
        except CronJobsError as trouble:  # The caller must get the error of *call*.
            logger.error(
                "once(%r): the function raised, and the row in job_effects cannot be removed, so "
                "the effect is in doubt: %s",
                effect.key,
                trouble,
            )
        raise
    except BaseException:
        # This is an interruption, Ctrl-C, or the SystemExit with which a server ends its worker. It
        # is unknown how far the call got. The next caller finds the effect in doubt, even if this
        # write fails.
        with suppress(CronJobsError), _refusing_own_lock(effect):
            once_effects.doubt(effect.books, effect.key, effect.owner)
        raise


def _run_to_its_end(key: str, value: T) -> T:
    unrun_kind = close_unrun(value)
    if unrun_kind == "a coroutine":
        raise SetupError(
            f"once({key!r}) was given an async function, which it cannot await. Give a plain one; "
            "if it takes long, await asyncio.to_thread(jobs.once, …)."
        )
    if unrun_kind is not None:
        raise SetupError(
            f"once({key!r}): the function returned {unrun_kind}, so none of its lines ran. Give a "
            "function without yield."
        )
    return value


def _record(effect: _Effect, result: JSON) -> bool:
    """Record the result; return False if another caller has taken over the mark.

    If the call wrote in ``db.session``, the session holds SQLite's write lock. Then the result is
    written there, and is committed together with the call's writes. If they are rolled back, the
    effect stays in doubt, since it happened and its record is lost.
    """
    session, books, mark = effect.state.db.session(), effect.books, (effect.key, effect.owner)
    if session_holds_lock(session):
        try:
            with books.trying_once(), books.busy_for(OWN_LOCK_SECONDS):
                return once_effects.done(books, *mark, result)
        except DatabaseTrouble as trouble:
            if not trouble.transient:
                raise
        # If this fails, another process holds the lock, and the session has only read.
        with suppress(OperationalError), books.guard():
            return once_effects.done_in(session.connection(), books.dialect, *mark, result)
    return once_effects.done(books, *mark, result)


def _remove(effect: _Effect) -> None:
    try:
        with _refusing_own_lock(effect):
            once_effects.remove(effect.books, effect.key, effect.owner)
    except SetupError:
        # The call's own writes hold the lock, since nothing held it when the mark was inserted.
        effect.state.db.session().rollback()
        once_effects.remove(effect.books, effect.key, effect.owner)


def _overtaken(effect: _Effect) -> None:
    """Report that another caller had taken over the mark when the effect was done."""
    if effect.run_id is not None:
        raise LeaseLost(
            f"once({effect.key!r}): the effect was done, but another worker had taken it over"
        )
    logger.error(
        "once(%r): the effect took longer than the lease of %g s, so another caller took it over, "
        "and may have done it, too. Set CRONJOBS_LEASE to more than the effect may take.",
        effect.key,
        effect.state.settings.lease,
    )
