"""Durable steps: work of a run that is done once, however many attempts the run takes.

A step's work in ``db.session``, its row, and a check that this worker still holds the run are
committed together. No mark is made before: until that commit, nothing has happened.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NoReturn, TypeGuard, cast

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from ...config import in_seconds
from ...core.app_state import State
from ...core.current import CurrentRun, in_event_loop, running
from ...core.enqueue import explaining_missing_tables, wake
from ...core.insert import writing_connection
from ...core.look import locker
from ...core.tasks.options import (
    check_delay,
    check_function,
    check_key,
    check_options,
    is_id,
    is_key,
)
from ...core.tasks.payload import check_value, close_unrun
from ...core.uncommitted import note_enqueued, uncommitted
from ...db import failpoints
from ...db.transactions import Words, bounded, guarded, isolated, unless_locked
from ...errors import (
    Cancelled,
    CronJobsError,
    Interruption,
    LeaseLost,
    NotFound,
    PayloadError,
    SetupError,
    Suspended,
)
from ...log import logger
from ...types import JSON, json_text
from . import step_rows as steps
from .step_rows import AttemptSteps, StepRow

_WORDS = Words("A step", "the step's row", "do it between two steps")
#: Seconds before a locked row is tried again, and seconds until a run comes back if its handler
#: cannot wait.
_PAUSE, _SOON = 0.2, 1.0
_PACKAGE = __name__.partition(".")[0] + "."


def step(
    state: State,
    name: str,
    func: Callable[..., Any],
    args: Sequence[object],
    kwargs: dict[str, object],
    limit: object,
) -> Any:
    """Call *func* unless the step *name* has finished; return the stored or new result.

    :returns: an awaitable of the result if *func* is an async function.
    """
    seconds = in_seconds(limit)
    check_options([("step_timeout", seconds)], "step: ")
    check_function(f"step({name!r})", func, "step(name, compute, month)")
    current = _Step(state, "step", name)
    call = partial(func, *args, **kwargs)
    if current.awaits(func):
        awaited = _step_async(current, call, seconds)
        current.steps.unbegun[name] = (str(current.row), awaited)
        return awaited
    if not current.row.finished:
        with current.opened():
            with current.working(seconds):
                current.end(call())
            for _ in current.commits():
                time.sleep(_PAUSE)
        current.raise_if_interrupted()
    return current.row.result


async def _step_async(
    current: _Step, call: Callable[[], Awaitable[Any]], limit: float | None
) -> JSON:
    import asyncio

    current.steps.unbegun.pop(current.row.name, None)
    if not current.row.finished:
        with current.opened():
            with current.working(limit):
                current.end(await call())
            for _ in current.commits():
                await asyncio.sleep(_PAUSE)
        current.raise_if_interrupted()
    return current.row.result


def each(state: State, name: str, next_ids: Callable[[Any], Any]) -> Any:
    """Return an iterator of chunks; *next_ids* is called with the last id of the previous one."""
    if not callable(next_ids):
        raise SetupError(
            f"each({name!r}) was given {next_ids!r:.60}, which is not a function. Give a function "
            "that takes the last id of the previous chunk (at first None) and returns the next ids."
        )
    current = _Step(state, "each", name)
    current.steps.unbegun[name] = (str(current.row), None)
    if current.awaits(next_ids):
        return _AsyncChunks(_chunks(current, next_ids, True))
    return _chunks(current, next_ids, False)


def _chunks(current: _Step, next_ids: Callable[[Any], Any], is_async: bool) -> Generator[Any, Any]:
    """Yield the chunks; if *is_async*, also yield awaitables, whose results the caller sends."""
    name = current.row.name
    current.steps.unbegun.pop(name, None)
    while not current.row.finished:
        with current.opened():
            with current.working():
                new_ids = next_ids(current.row.result)
                if chunk := current.chunk((yield new_ids) if is_async else new_ids):
                    if current.steps.doubts(name, chunk):
                        # Only the function knows its order, so ask it what follows the first id.
                        new_ids = next_ids(current.as_stored(chunk[0]))
                        current.check_order(chunk, (yield new_ids) if is_async else new_ids)
                    yield from current.watched(chunk)
            for _ in current.commits():
                if is_async:
                    yield _rest()
                else:
                    time.sleep(_PAUSE)
        current.raise_if_interrupted()


async def _rest() -> None:
    import asyncio

    await asyncio.sleep(_PAUSE)


class _AsyncChunks(AsyncIterator[Any]):
    """Iterates over chunks with ``async for``.

    Python closes an async generator some time after its loop was left. This class closes the chunks
    at once, so that an unfinished one is rolled back.
    """

    def __init__(self, chunks: Generator[Any, Any]) -> None:
        self._chunks = chunks

    async def __anext__(self) -> Any:
        try:
            item: Any = next(self._chunks)
            while inspect.isawaitable(item):
                try:
                    value = await item
                except BaseException as error:
                    item = self._chunks.throw(error)
                else:
                    item = self._chunks.send(value)
            return item
        except StopIteration:
            raise StopAsyncIteration from None

    def __iter__(self) -> Any:
        raise SetupError("each was given an async function. Loop over its chunks with `async for`.")


def pause(state: State, kind: str, name: str, delay: object) -> JSON:
    """Return the payload of the signal *name*, or None once a wait or a sleep is over.

    :raises Suspended: the wait or sleep is not over. The run becomes due when it is.
    """
    seconds = in_seconds(delay)
    if seconds is None:
        raise TypeError(f"{kind}: the time is None. Give seconds or a timedelta.")
    check_delay(f"{kind}: the time", seconds)
    current = _Step(state, kind, name)
    if not current.row.finished:
        with current.opened():
            for _ in current.commits(float(seconds)):
                if in_event_loop():
                    why = "its row is locked, so it is tried again soon"
                    current.interrupt(Suspended(why, _SOON))
                time.sleep(_PAUSE)
        current.raise_if_interrupted()
    return current.row.result


def signal(state: State, run: object, name: str, payload: object) -> bool:
    """Send *payload* as the signal *name* to a run, in ``db.session``.

    :param run: the run, its id or its idempotency key.
    :returns: True if it is the first signal of that name, and the run and its wait have not ended.
    """
    check_key("signal: the name", name, 200)
    if payload is None:
        raise PayloadError(
            "signal: the payload is None, which wait() returns at a timeout. Give another value."
        )
    stored_payload = check_value(payload, state.settings, "payload")
    run_key = run if isinstance(run, (int, str)) else getattr(run, "id", None)
    session = state.db.session()
    with explaining_missing_tables(state):
        connection = writing_connection(session)
        run_id = steps.run_with(connection, run_key) if _may_name(run_key) else None
        if run_id is None:
            raise NotFound(f"signal({name!r}): there is no run {_which(run_key)}")
        if not steps.sees_the_end(connection):
            with state.bookkeeping() as books:
                if steps.has_ended(books, run_id):
                    return False
        is_first = steps.signal(connection, run_id, name, stored_payload)
        if (
            not is_first
            and (awaited_signal := steps.waits_for(connection, run_id, name)) is not None
        ):
            logger.warning(
                "signal(%r) was not sent: run %d waits for the signal %r.",
                name,
                run_id,
                awaited_signal,
            )
        if is_first:
            note_enqueued(session, f"the signal {name!r} to run {run_id}")
            wake(state, session)
    return is_first


def _which(run_key: object) -> str:
    if not isinstance(run_key, str):
        return f"{run_key}; it may have been pruned. Give a run, its id or its idempotency key."
    # The key is not shown, since it may contain a value that must be hidden.
    return (
        "that holds this idempotency key. A run with unique_while='pending' holds it until it has "
        "ended, and one with 'waiting' until it begins: give its id."
    )


def _may_name(run_key: object) -> TypeGuard[int | str]:
    """Return whether *run_key* may be a run's id or key; databases refuse some other values."""
    if isinstance(run_key, str):
        return is_key(run_key, 500)
    return is_id(run_key)


class _Step:
    """A step that the handler of an attempt has reached.

    :ivar row: its row: at first as it was read, then as it will be written, then as committed.
    """

    def __init__(self, state: State, kind: str, name: str) -> None:
        check_key(f"{kind}: the name", name, 200)
        self.state: State = state
        new = StepRow(name, kind)
        self.run: CurrentRun = _run_of(state, new)
        self.steps: AttemptSteps = _attempt_steps(self.run)
        self._note_line(name)
        self.row: StepRow = self.steps.rows.get(name, new)
        self._began = 0.0
        self._run_row: Any = None
        if self.row.kind != kind:
            raise SetupError(
                f"{new} has the name of {self.row}, which this run has recorded already. If you "
                "change the kind of a step, give it a new name."
            )

    def awaits(self, func: Callable[..., object]) -> bool:
        """Return whether *func* is an async function.

        :raises SetupError: it is one, and no event loop is running.
        """
        if not inspect.iscoroutinefunction(func):
            return False
        if in_event_loop():
            return True
        raise SetupError(
            f"{self.row} was given an async function in a plain handler. Give a plain function, or "
            "declare the handler with async def and await the step."
        )

    def end(self, value: object) -> None:
        """Give the row the result *value*.

        :raises SetupError: *value* is a generator or coroutine, so the function has not run.
        :raises PayloadError: *value* is not JSON, or too large.
        """
        self.row = self.row._replace(result=self.as_stored(value), finished=True)

    def chunk(self, next_ids: Iterable[Any]) -> list[Any]:
        """Return the ids of the next chunk, and note the last one; an empty chunk ends the step."""
        if not isinstance(next_ids, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SetupError(
                f"{self.row}: the function returned {next_ids!r:.60}. Return the next ids in a "
                "list, and an empty list at the end."
            )
        ids = list(next_ids)
        if not ids:
            self.row = self.row._replace(finished=True)
            return ids
        after = self.as_stored(ids[-1])
        if after != self.row.result and (pair := self.steps.unordered(self.row, ids)):
            raise self._unordered(pair)
        if after == self.row.result:
            raise SetupError(
                f"{self.row}: the function was given {after!r} and returned ids up to it again. "
                "Return only the ids after it, in ascending order."
            )
        self.row = self.row._replace(result=after, chunks=self.row.chunks + 1)
        return ids

    def check_order(self, chunk: Sequence[Any], later_ids: Iterable[Any]) -> None:
        """Check that *later_ids*, the ids after the first of *chunk*, contain the rest of it.

        :raises SetupError: some ids are missing.
        """
        later_reprs = set(map(repr, later_ids))
        if missing := [id_ for id_ in chunk[1:] if repr(id_) not in later_reprs]:
            raise self._unordered((chunk[0], missing[0]))

    def _unordered(self, pair: tuple[Any, Any]) -> SetupError:
        return SetupError(
            f"{self.row}: the function returned {pair[1]!r:.60} after {pair[0]!r:.60}, so ids "
            "would be skipped or repeated. Return ascending ids, all after the one that the "
            "function was given: ORDER BY the same column, without DESC."
        )

    def watched(self, chunk: list[Any]) -> Generator[list[Any]]:
        """Yield *chunk*, and note a warning if the loop is left there."""
        try:
            yield chunk
        except GeneratorExit:
            self.steps.left[self.row.name] = (
                f"The loop over {self.row} was left (by break, return or an error) inside chunk "
                f"{self.row.chunks}, whose work is rolled back, and the step has not ended. To end "
                "it early, let its function return no more ids."
            )
            raise

    @contextmanager
    def opened(self) -> Generator[None]:
        """Let only `commits` commit in this block; roll back if the block raises."""
        self._check_place()
        db = self.state.db
        session = db.session()
        if session.in_transaction():
            session.commit()
        self._began = time.monotonic()
        self.steps.at_work = self.row.name
        try:
            with isolated(db):
                yield
        except BaseException:
            with suppress(Exception):  # The first error must be seen.
                session.rollback()
            raise
        finally:
            self.steps.at_work = None

    @contextmanager
    def working(self, limit: float | None = None) -> Generator[None]:
        """Keep the work in this block from committing.

        :param limit: seconds that the work may take.
        """
        time_limit = nullcontext() if limit is None else self.run.limited(limit)
        with guarded(self.state.db, _WORDS), time_limit:
            yield

    def commits(self, delay: float | None = None) -> Generator[None]:
        """Commit the work and the step's row; while a row is locked, yield before each retry.

        A try waits for a lock for at most `transactions.STEP_LOCK_SECONDS`, since meanwhile it
        cannot be interrupted, and blocks the other async handlers.

        :param delay: seconds for which the run waits at this step.
        :raises LeaseLost: the run was reclaimed meanwhile; all is rolled back.
        """
        session, seconds = self.state.db.session(), time.monotonic() - self._began
        # Getting a connection may wait, so it is done outside the guard.
        connection = writing_connection(session)
        is_logged = False
        while not self._try_commit(session, connection, seconds, delay):
            if not is_logged:
                logger.warning(
                    "%s: %s waits. %s",
                    *(self.run.claim, self.row, locker(connection, self.run.id)),
                )
                is_logged = True
            yield

    def _note_line(self, name: str) -> None:
        frame = inspect.currentframe()
        while frame and str(frame.f_globals.get("__name__")).startswith(_PACKAGE):
            frame = frame.f_back
        line = f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame else "?"
        if (before := self.steps.lines.setdefault(name, line)) is not line:
            raise SetupError(
                f"The step {name!r} occurs twice in this attempt: {before}, and {line}. Give "
                "each step its own name; in a loop, put the id into the name."
            )

    def as_stored(self, value: object) -> JSON:
        """Return *value* as a later attempt will read it."""
        if unrun_kind := close_unrun(value):
            raise SetupError(
                f"{self.row}: the function returned {unrun_kind}, so none of its lines ran. Give a "
                "function that returns its result."
            )
        try:
            checked_value = check_value(value, self.state.settings, "result")
        except PayloadError as error:
            raise PayloadError(
                f"{self.row} cannot keep its result, which must be small JSON: {error}"
            ) from None
        return cast("JSON", json.loads(json_text(checked_value)))

    def _check_place(self) -> None:
        """Refuse a step inside another one, or with uncommitted work that it would commit."""
        if (running_step := self.steps.at_work) is not None:
            raise SetupError(
                f"{self.row} is called while the step {running_step!r} is running. Steps cannot be "
                "nested: call the function directly, or call this step after that one."
            )
        if work := uncommitted(self.state.db):
            raise SetupError(
                f"{self.row} begins with uncommitted work in db.session: {work}. Another attempt "
                "would do it again. Commit it, or do it in a step."
            )

    def _try_commit(
        self, session: Session, connection: Connection, seconds: float, delay: float | None
    ) -> bool:
        """Commit if the run is ours and the name was free; return False if a row is locked."""
        claim, progress, books = self.run.claim, self.row.name, self.run.books
        if self.row.chunks:
            progress = f"{progress}, chunk {self.row.chunks}"
        # A handler that reports its own progress keeps it.
        message = progress if self.run.reported is None else None
        with books.guard(), bounded(connection, books.limit):
            failpoints.reach(f"before-{self.row.kind}")
            step_and_run = unless_locked(
                connection, lambda c: steps.write(c, claim, self.row, seconds, delay, message)
            )
            if step_and_run is None:
                return False
            row, self._run_row = step_and_run
            self._check_still_held(row)
            self.row = row or self.row
            self._commit(session)
            self.run.claim = claim._replace(
                max_attempts=self._run_row.max_attempts, forgiven=self._run_row.forgiven
            )
            failpoints.reach(f"after-{self.row.kind}")
        return True

    def _check_still_held(self, row: StepRow | None) -> None:
        if self._run_row is None:
            raise LeaseLost(f"{self.row}: the lease was lost before the commit; all is rolled back")
        if row is None:
            raise SetupError(
                f"{self.row} has the name of a signal, or of a step that has ended meanwhile. Give "
                "each step and each signal its own name."
            )

    def _commit(self, session: Session) -> None:
        """Commit; if that raises, check whether the database has committed nevertheless.

        The connection may break before the answer arrives, or a hook of the app may raise.
        """
        try:
            session.commit()
        except Exception:
            if not self._is_committed():
                raise
            logger.exception(
                "%s: %s is committed, but then the answer was lost, or a hook of the session's "
                "commit raised. The run continues.",
                self.run.claim,
                self.row,
            )
            session.close()

    def _is_committed(self) -> bool:
        with suppress(CronJobsError), self.run.books_here() as books:
            return steps.is_written(books, self.run.claim, self.row)
        return False

    def raise_if_interrupted(self) -> None:
        """Let the attempt continue, unless it must end here.

        :raises Interruption: it must.
        """
        if (error := self._interruption()) is not None:
            self.interrupt(error)

    def interrupt(self, error: Interruption) -> NoReturn:
        """End the attempt with *error*, even if the handler swallows it."""
        self.run.ended_by = error
        raise error

    def _interruption(self) -> Interruption | None:
        run_row = self._run_row
        if run_row.cancel_requested_at is not None:
            return Cancelled("cancelled by an operator while it ran")
        if self.row.waits:
            return Suspended(f"it {steps.WAITS[self.row.kind]} at the step {self.row.name!r}")
        if run_row.paused or self.run.gives_back():
            why = "its task or queue is paused" if run_row.paused else "its worker is stopping"
            return Suspended(f"{why}, so it was released at the end of a step")
        return None


def _attempt_steps(run: CurrentRun) -> AttemptSteps:
    """Return the run's steps as this attempt knows them; the first step reads them."""
    if AttemptSteps not in run.feature_objects:
        with run.books_here() as books:
            attempt_steps = run.feature_objects[AttemptSteps] = steps.read(books, run.id)
        run.at_end = (*run.at_end, lambda: _warn(run, attempt_steps))
    known_steps: AttemptSteps = run.feature_objects[AttemptSteps]
    return known_steps


def _warn(run: CurrentRun, attempt_steps: AttemptSteps) -> None:
    """Warn about steps that were called and not done, and about chunks that were left."""
    for warning in attempt_steps.warnings():
        run.warn(warning)


def _run_of(state: State, row: StepRow) -> CurrentRun:
    run = running()
    if run is None or run.app is not state.app:
        raise SetupError(
            f"{row} is called outside a run of this app. Steps are for handlers; in a test, call "
            "the handler with run() of flask_cronjobs.testing."
        )
    run.raise_again()
    if state.registry.get(run.task).options.atomic:
        raise SetupError(
            f"{row} is called in a task with atomic=True, whose work is one commit already. "
            "Remove atomic=True, or the step."
        )
    return run
