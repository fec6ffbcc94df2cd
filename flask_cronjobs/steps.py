"""Durable steps: work of a run that is done once, whichever attempt goes on behind it.

The work of a step in ``db.session``, the step's row, and a look that the run is still ours are one
commit. No mark is made beforehand: until that commit, nothing has happened.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeGuard, cast

from sqlalchemy.orm import Session

from .config import in_seconds
from .db import failpoints
from .db.dialect import json_text
from .db.transactions import Words, guarded, isolated
from .errors import Cancelled, LeaseLost, NotFound, PayloadError, SetupError, Suspended
from .jobs import steps
from .jobs.runs.current import CurrentRun, running
from .jobs.runs.enqueue import explaining_missing_tables, wake
from .jobs.runs.insert import writing_connection
from .jobs.runs.uncommitted import note_enqueued, uncommitted
from .jobs.state import State
from .jobs.steps import StepRow
from .registry.options import check_delay, check_function, check_key, check_options, is_id, is_key
from .registry.payload import check_value, close_unrun
from .types import JSON

_WORDS = Words("A step", "the step's row", "do it between two steps")
_PACKAGE = __name__.partition(".")[0] + "."


def step(
    state: State,
    name: str,
    func: Callable[..., Any],
    args: Sequence[object],
    kwargs: dict[str, object],
    timeout: object,
) -> Any:
    """Call *func* unless the step *name* has ended; return its result, kept or new.

    :returns: for an async function, an awaitable.
    """
    seconds = in_seconds(timeout)
    check_options([("timeout", seconds)], "step: ")
    check_function(f"step({name!r})", func, "step(name, compute, month)")
    this = _Step(state, "step", name)
    call = partial(func, *args, **kwargs)
    if this.awaits(func):
        return _step_async(this, call, seconds)
    if not this.row.finished:
        with this.opened(limit=seconds):
            this.end(call())
    return this.row.result


async def _step_async(this: _Step, call: Callable[[], Awaitable[Any]], limit: float | None) -> JSON:
    if not this.row.finished:
        with this.opened(limit=limit):
            this.end(await call())
    return this.row.result


def each(state: State, name: str, next_ids: Callable[[Any], Any]) -> Any:
    """Return the chunks that *next_ids* gives, each after the last id of the one before."""
    this = _Step(state, "each", name)
    if this.awaits(next_ids):
        return _AsyncChunks(_chunks(this, next_ids, True))
    return _chunks(this, next_ids, False)


def _chunks(this: _Step, next_ids: Callable[[Any], Any], is_async: bool) -> Generator[Any, Any]:
    """Yield the chunks; if *is_async*, before each what to await and send."""
    while not this.row.finished:
        with this.opened():
            found = next_ids(this.row.result)
            if chunk := this.chunk((yield found) if is_async else found):
                yield chunk


class _AsyncChunks(AsyncIterator[Any]):
    """The same for ``async for``.

    Python closes an async generator some time after its loop was left. This rolls back at once.
    """

    def __init__(self, chunks: Generator[Any, Any]) -> None:
        self._chunks = chunks

    async def __anext__(self) -> Any:
        try:
            found = next(self._chunks)
            try:
                ids = await found
            except BaseException as error:
                self._chunks.throw(error)
                raise
            return self._chunks.send(ids)
        except StopIteration:
            raise StopAsyncIteration from None


def pause(state: State, kind: str, name: str, delay: object) -> JSON:
    """Return the payload of the signal *name*, if it is there, or if its time, or a sleep's, is up.

    :raises Suspended: it is not. The run is due again when it is.
    """
    seconds = in_seconds(delay)
    if seconds is None:
        raise TypeError(f"{kind}: the time is None. Give seconds or a timedelta.")
    check_delay(f"{kind}: the time", seconds)
    this = _Step(state, kind, name)
    if not this.row.finished:
        with this.opened(delay=float(seconds)):
            pass
    return this.row.result


def signal(state: State, run: object, name: str, payload: object) -> bool:
    """Send *payload* to the run that waits for the signal *name*, in ``db.session``.

    :param run: the run, its id or its idempotency key.
    :returns: whether it is the first, and neither the run nor its wait has ended.
    """
    check_key("signal: the name", name, 200)
    if payload is None:
        raise PayloadError("signal: the payload is None, which wait() returns if none came.")
    kept = check_value(payload, state.settings.max_payload_bytes, "payload")
    wanted = run if isinstance(run, (int, str)) else getattr(run, "id", None)
    session = state.db.session()
    with explaining_missing_tables(state):
        connection = writing_connection(session)
        found = steps.run_with(connection, wanted) if _may_name(wanted) else None
        if found is None:
            raise NotFound(f"signal({name!r}): there is no run {_which(wanted)}")
        is_first = steps.signal(connection, found, name, kept)
        if is_first:
            note_enqueued(session, f"the signal {name!r} to run {found}")
            wake(state, session)
    return is_first


def _which(wanted: object) -> str:
    if not isinstance(wanted, str):
        return f"{wanted}; it may have been pruned. Give a run, its id or its idempotency key."
    # It may have a value in it that is to be hidden.
    return (
        "that holds this idempotency key. One with unique_while='pending' holds it until it has "
        "ended, one with 'waiting' until it begins: give its id."
    )


def _may_name(wanted: object) -> TypeGuard[int | str]:
    """Return whether it may be an id or a key of a run: a database refuses some other values."""
    if isinstance(wanted, str):
        return is_key(wanted, 500)
    return is_id(wanted)


class _Step:
    """One step, as the handler of an attempt has come to it.

    :ivar row: its row: as it was found, then as it is to be, and then as it is committed.
    """

    def __init__(self, state: State, kind: str, name: str) -> None:
        check_key(f"{kind}: the name", name, 200)
        self.state: State = state
        new = StepRow(name, kind)
        self.run: CurrentRun = _run_of(state, new)
        self._known = self.run.known_steps
        self._note_line(name)
        self.row: StepRow = self._known.rows.get(name, new)
        if self.row.kind != kind:
            raise SetupError(
                f"{new} has a row that {self.row} made. Give a changed step a new name."
            )

    def awaits(self, func: Callable[..., object]) -> bool:
        """Return whether *func* is an async function.

        :raises SetupError: it is, and no event loop is at work.
        """
        if not inspect.iscoroutinefunction(func):
            return False
        import asyncio

        with suppress(RuntimeError):
            return bool(asyncio.get_running_loop())
        raise SetupError(
            f"{self.row} was given an async function in a plain handler. Give a plain function, or "
            "declare the handler with async def and await the step."
        )

    def end(self, value: object) -> None:
        """Let the row have the result *value*.

        :raises SetupError: it is a function's body that nobody has run.
        :raises PayloadError: it is not JSON, or too large.
        """
        self.row = self.row._replace(result=self._kept(value), finished=True)

    def chunk(self, found: Iterable[Any]) -> list[Any]:
        """Return the ids of the next chunk, and note the last as the place; none ends the step."""
        if not isinstance(found, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SetupError(
                f"{self.row}: the function returned {found!r:.60}. Return the next ids in a list, "
                "an empty one at the end."
            )
        ids = list(found)
        if not ids:
            self.row = self.row._replace(finished=True)
            return ids
        after = self._kept(ids[-1])
        if after == self.row.result:
            raise SetupError(
                f"{self.row}: the function was given {after!r}, and returned ids up to it again. "
                "Return those after it, in order."
            )
        self.row = self.row._replace(result=after, chunks=self.row.chunks + 1)
        return ids

    @contextmanager
    def opened(self, limit: float | None = None, delay: float | None = None) -> Generator[None]:
        """Commit the work of this block and the step's row together; roll back what raises.

        :param limit: for how many seconds it may work.
        :param delay: for how many seconds the run waits here.
        :raises LeaseLost: the run is another worker's by now.
        :raises Interruption: the step is committed, and the run is to go on later, or is cancelled.
        """
        self._check_place()
        db, began = self.state.db, time.monotonic()
        session = db.session()
        if session.in_transaction():
            session.commit()
        limited = nullcontext() if limit is None else self.run.limited(limit)
        self._known.at_work = self.row.name
        try:
            with isolated(db):
                with guarded(db, _WORDS), limited:
                    yield
                with self.run.books.guard():
                    held = self._commit(session, time.monotonic() - began, delay)
        except BaseException:
            with suppress(Exception):  # What was wrong is to be seen.
                session.rollback()
            raise
        finally:
            self._known.at_work = None
        self._go_on(held)

    def _note_line(self, name: str) -> None:
        frame = inspect.currentframe()
        while frame and str(frame.f_globals.get("__name__")).startswith(_PACKAGE):
            frame = frame.f_back
        line = f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame else "?"
        if (before := self._known.lines.setdefault(name, line)) is not line:
            raise SetupError(
                f"The step {name!r} is there twice in this attempt: {before}, and {line}. Give "
                "each its own name; in a loop, one with the id in it."
            )

    def _kept(self, value: object) -> JSON:
        """Return *value* as a later attempt gets it."""
        if what := close_unrun(value):
            raise SetupError(f"{self.row}: the function returned {what}, of which no line was run.")
        try:
            kept = check_value(value, self.state.settings.max_payload_bytes, "result")
        except PayloadError as error:
            raise PayloadError(
                f"{self.row} cannot keep its result, which must be small JSON: {error}"
            ) from None
        return cast("JSON", json.loads(json_text(kept)))

    def _check_place(self) -> None:
        """Refuse a step that is called inside another, or with work that it would commit."""
        if (other := self._known.at_work) is not None:
            raise SetupError(
                f"{self.row} is called while the step {other!r} is at work. Steps stand one "
                "behind the other: call the function directly, or call the step behind that one."
            )
        if left := uncommitted(self.state.db):
            raise SetupError(
                f"{self.row} begins with uncommitted work in db.session: {left}. Another attempt "
                "would do it again. Commit it, or do it in a step."
            )

    def _commit(self, session: Session, seconds: float, delay: float | None) -> Any:
        """Commit if the run is still ours and the name was free; return what `write` found."""
        failpoints.reach(f"before-{self.row.kind}")
        claim, shown = self.run.claim, self.row.name
        if self.row.chunks:
            shown = f"{shown}, chunk {self.row.chunks}"
        # A handler that reports its own progress has that.
        message = shown if self.run.reported is None else None
        connection = writing_connection(session)
        row, held = steps.write(connection, claim, self.row, seconds, delay, message)
        if held is None:
            raise LeaseLost(f"{self.row}: the lease was lost before the commit; all is rolled back")
        if row is None:
            raise SetupError(
                f"{self.row} has the name of a signal, or of a step that has ended since."
            )
        session.commit()
        self.row = row
        self.run.claim = claim._replace(max_attempts=held.max_attempts, forgiven=held.forgiven)
        failpoints.reach(f"after-{self.row.kind}")
        return held

    def _go_on(self, held: Any) -> None:
        """Return if the attempt is to go on.

        :raises Interruption: it is not.
        """
        if held.cancel_requested_at is not None:
            raise Cancelled("cancelled by an operator while it ran")
        if self.row.waits:
            raise Suspended(f"it {steps.WAITS[self.row.kind]} at the step {self.row.name!r}")
        if held.paused or self.run.to_stop():
            why = "its task or queue is paused" if held.paused else "its worker is to end"
            raise Suspended(f"{why}, so it was given back at the end of a step")


def _run_of(state: State, this: StepRow) -> CurrentRun:
    run = running()
    if run is None or run.app is not state.app:
        raise SetupError(
            f"{this} is called outside a run of this app. Steps are for handlers; in a test, call "
            "the handler by run() of flask_cronjobs.testing."
        )
    if state.registry.get(run.task).options.atomic:
        raise SetupError(
            f"{this} is called in a task with atomic=True, whose work is one commit already. "
            "Remove atomic=True, or the step."
        )
    return run
