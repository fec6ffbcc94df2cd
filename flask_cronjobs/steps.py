"""Durable steps: work of a run that is done once, whichever attempt goes on behind it.

The work of a step in ``db.session``, the step's row, and a look that the run is still ours are one
commit. No mark is made beforehand: until that commit, nothing has happened.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, cast

from sqlalchemy.orm import Session

from .config import in_seconds
from .db import failpoints
from .db.dialect import json_text
from .db.transactions import Words, bind_of, guarded, isolated
from .errors import (
    AtomicCommit,
    Cancelled,
    LeaseLost,
    NotFound,
    PayloadError,
    SetupError,
    Suspended,
    TimedOut,
)
from .jobs import steps
from .jobs.runs.current import CurrentRun, running
from .jobs.runs.enqueue import explaining_missing_tables, wake
from .jobs.runs.insert import writing_connection
from .jobs.runs.uncommitted import uncommitted
from .jobs.state import State
from .jobs.steps import StepRow
from .registry.options import check_key, check_options
from .registry.payload import check_payload, close_unrun
from .types import JSON

T = TypeVar("T")

_WORDS = Words(
    committed="A step called db.session.commit(): its work commits together with its row. Remove "
    "the commit (begin_nested() is fine), or do it between two steps.",
    ended="A step ended the transaction of db.session by SQL (COMMIT, ROLLBACK) or by its driver's "
    "commit(). What it wrote before is committed without the step's row, so the run is not "
    "repeated. Let the session alone end it: remove the statement.",
)
_REPLACED = (
    "A step called db.session.remove(), so its work is in a session that does not commit with the "
    "step's row. Remove the call."
)
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
    seconds = _timeout(timeout)
    if not callable(func):
        raise TypeError(
            f"step({name!r}): the function is of type {type(func).__name__}. Give the function and "
            "its arguments, not its result: step(name, compute, month)"
        )
    this = _Step(state, "step", name)
    call = partial(func, *args, **kwargs)
    if inspect.iscoroutinefunction(func):
        this.needs_loop()
        return _step_async(this, call, seconds)
    if this.row is not None:
        return this.row.result
    with this.opened():
        if seconds is None:
            value = call()
        else:
            with this.run.known_steps().limited(seconds):
                value = call()
        this.result = this.kept(value)
    return this.result


async def _step_async(
    this: _Step, call: Callable[[], Awaitable[object]], seconds: float | None
) -> JSON:
    if this.row is not None:
        return this.row.result
    import asyncio

    with this.opened():
        began = time.monotonic()
        try:
            value = await asyncio.wait_for(call(), seconds)
        except asyncio.TimeoutError as error:
            if seconds is None or time.monotonic() - began < seconds:
                raise  # The function's own.
            raise TimedOut(
                f"the step {this.name!r} ran longer than its timeout of {seconds:g} s"
            ) from error
        this.result = this.kept(value)
    return this.result


def each(state: State, name: str, next_ids: Callable[[Any], Any]) -> Chunks:
    """Return the chunks that *next_ids* gives, each after the last id of the one before."""
    this = _Step(state, "each", name)
    if inspect.iscoroutinefunction(next_ids):
        this.needs_loop()
    return Chunks(this, next_ids)


class Chunks:
    """The chunks of `each`, for ``for`` and for ``async for``.

    Python closes an async generator some time after its loop was left. This rolls back at once.
    """

    def __init__(self, this: _Step, next_ids: Callable[[Any], Any]) -> None:
        self._work = _work_of(this)
        self._next_ids = next_ids

    def __iter__(self) -> Chunks:
        return self

    def __next__(self) -> Any:
        after = next(self._work)
        try:
            found = self._next_ids(after)
        except BaseException as error:
            self._work.throw(error)
            raise
        return self._work.send(found) or next(self._work)

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> Any:
        try:
            after = next(self._work)
            try:
                found = await self._next_ids(after)
            except BaseException as error:
                self._work.throw(error)
                raise
            return self._work.send(found) or next(self._work)
        except StopIteration:
            raise StopAsyncIteration from None


def _work_of(this: _Step) -> Generator[Any, Iterable[Any]]:
    """Yield by turns the id after which to go on, and a chunk; in one transaction."""
    while not this.finished:
        with this.opened():
            yield this.chunk((yield this.result))


def sleep(state: State, name: str, delay: object) -> None:
    """End the attempt, and go on behind this line after *delay*."""
    _Step(state, "sleep", name).pause(_delay("sleep", delay))


def wait(state: State, name: str, timeout: object) -> JSON:
    """Return the payload of the signal *name*; end the attempt until it comes."""
    return _Step(state, "wait", name).pause(_delay("wait", timeout))


def signal(state: State, run: object, name: str, payload: object) -> bool:
    """Send *payload* to the run that waits for the signal *name*, in ``db.session``.

    :param run: the run, its id or its idempotency key.
    :returns: whether it is the first, and neither the run nor its wait has ended.
    """
    check_key("signal: the name", name, 200)
    if payload is None:
        raise PayloadError("signal: the payload is None, which wait() returns if none came.")
    kept = check_payload({"payload": payload}, state.settings.max_payload_bytes)["payload"]
    wanted = run if isinstance(run, (int, str)) else getattr(run, "id", None)
    session = state.db.session()
    with explaining_missing_tables(state):
        connection = writing_connection(session)
        found = None if wanted is None else steps.run_with(connection, wanted)
        if found is None:
            raise NotFound(f"signal({name!r}): there is no run {wanted!r}.")
        is_first = steps.signal(connection, found, name, kept)
        if is_first:
            wake(state, session)
    return is_first


def _timeout(timeout: object) -> float | None:
    seconds = in_seconds(timeout)
    check_options([("timeout", seconds)], "step: ")
    return cast("float | None", seconds)


def _delay(what: str, delay: object) -> float:
    seconds = in_seconds(delay)
    if seconds is None:
        raise TypeError(f"{what}: the time is None. Give seconds or a timedelta.")
    check_options([("delay", seconds)], f"{what}: ")
    return float(seconds)


class _Step:
    """One step, as the handler of an attempt has come to it.

    :param kind: as in its row.
    :ivar row: its row, if it has ended.
    :ivar result: what its row is to have.
    :ivar finished: whether it has ended, or ends with the next commit.
    """

    def __init__(self, state: State, kind: str, name: str) -> None:
        check_key(f"{kind}: the name", name, 200)
        self.state: State = state
        self.kind: str = kind
        self.name: str = name
        self.run: CurrentRun = _run_of(state, self)
        self._note_line()
        row = self._known_rows().get(name)
        if row is not None and row.kind != kind:
            raise SetupError(
                f"{self} has a row that {row.kind}({name!r}) made. Give a changed step a new name."
            )
        self.result: JSON = None if row is None else row.result
        self._chunks = 0 if row is None else row.chunks
        self.finished: bool = row is not None and row.finished
        self.row: StepRow | None = row if self.finished else None
        self._session: Session = state.db.session()

    def __str__(self) -> str:
        return f"{self.kind}({self.name!r})"

    def needs_loop(self) -> None:
        """Refuse an async function where nothing can await it.

        :raises SetupError: no event loop is at work.
        """
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise SetupError(
                f"{self} was given an async function in a plain handler. Give a plain function, or "
                "declare the handler with async def and await the step."
            ) from None

    def kept(self, value: object) -> JSON:
        """Return *value* as a later attempt gets it.

        :raises SetupError: it is a function's body that nobody has run.
        :raises PayloadError: it is not JSON, or too large.
        """
        if what := close_unrun(value):
            raise SetupError(f"{self}: the function returned {what}, of which no line was run.")
        try:
            limit = self.state.settings.max_payload_bytes
            kept = check_payload({"result": value}, limit)["result"]
        except PayloadError as error:
            raise PayloadError(
                f"{self} cannot keep its result, which must be small JSON: {error}"
            ) from None
        return cast("JSON", json.loads(json_text(kept)))

    def chunk(self, found: Iterable[Any]) -> list[Any]:
        """Return the ids of the next chunk, and note the last as the place; none ends the step."""
        ids = list(found)
        if not ids:
            self.finished = True
            return ids
        after = self.kept(ids[-1])
        if after == self.result:
            raise SetupError(
                f"{self}: the function was given {after!r}, and returned ids up to it again. "
                "Return those after it, in order."
            )
        self.result, self._chunks = after, self._chunks + 1
        return ids

    @contextmanager
    def opened(self) -> Generator[None]:
        """Commit the work of this block and the step's row together.

        :raises LeaseLost: the run is another worker's by now; all is rolled back.
        :raises Interruption: the step has ended, and the run is to go on later, or is cancelled.
        """
        began = time.monotonic()
        with self._transaction() as bind:
            with guarded(self._session, bind, _WORDS, lambda: None):
                yield
                if self.state.db.session() is not self._session:
                    raise AtomicCommit(_REPLACED)
            with self.run.books.guard():
                held = self._end(time.monotonic() - began)
        self._go_on(held)

    def pause(self, seconds: float) -> JSON:
        """Return the result, once the time is over or the signal there.

        :raises Suspended: neither is so. The run is due again when it is.
        """
        if self.row is not None:
            return self.row.result
        with self._transaction(), self.run.books.guard():
            failpoints.reach("before-wait")
            row = steps.pause(self._connection(), self.run.claim, self.name, self.kind, seconds)
            held = self._commit(row, until=self.name if row and not row.finished else None)
            assert row is not None
            failpoints.reach("after-wait")
        if not row.finished:
            what = "sleeps" if self.kind == "sleep" else "waits for a signal"
            raise Suspended(f"it {what}: {self.name}")
        self._go_on(held)
        return row.result

    @contextmanager
    def _transaction(self) -> Generator[Any]:
        """Give the session a transaction for this step; roll back if the block raises."""
        known, session = self.run.known_steps(), self._session
        if known.at_work is not None:
            raise SetupError(
                f"{self} is called while the step {known.at_work!r} is at work. Steps stand one "
                "behind the other: call the function directly, or call the step behind that one."
            )
        if left := uncommitted(self.state.db):
            raise SetupError(
                f"{self} begins with uncommitted work in db.session: {left}. Another attempt would "
                "do it again. Commit it, or do it in a step."
            )
        if session.in_transaction():
            session.commit()
        known.at_work = self.name
        bind = bind_of(session, self.state.db.engine)
        try:
            with isolated(session, bind):
                yield bind
        except BaseException:
            with suppress(Exception):  # What was wrong is to be seen.
                session.rollback()
            raise
        finally:
            known.at_work = None

    def _end(self, seconds: float) -> Any:
        """Write the row of what is done, and commit."""
        is_free = steps.write(
            *(self._connection(), self.run.claim, self.name, self.kind, self.result),
            chunks=self._chunks,
            finished=self.finished or self.kind == "step",
            seconds=seconds,
        )
        chunk = f", chunk {self._chunks}" if self._chunks else ""
        held = self._commit(is_free, self.name + chunk)
        failpoints.reach("after-step")
        return held

    def _connection(self) -> Any:
        return writing_connection(self._session)

    def _commit(self, is_free: object, message: str | None = None, until: str | None = None) -> Any:
        """Commit if the run is still ours, and the name was free; return what `hold` found."""
        shown = message if self.run.reported is None else None
        held = steps.hold(self._connection(), self.run.claim, shown, until)
        if held is None:
            raise LeaseLost(f"{self}: the lease was lost before the commit; all is rolled back")
        if not is_free:
            raise SetupError(f"{self} has the name of a signal, or of a step that has ended since.")
        failpoints.reach("before-step")
        self._session.commit()
        self.run.claim = self.run.claim._replace(
            max_attempts=held.max_attempts, forgiven=held.forgiven
        )
        return held

    def _go_on(self, held: Any) -> None:
        """Return if the attempt is to go on.

        :raises Interruption: it is not.
        """
        if held.cancel_requested_at is not None:
            raise Cancelled("cancelled by an operator while it ran")
        if held.paused or self.run.known_steps().to_stop():
            why = "its task or queue is paused" if held.paused else "its worker is to end"
            raise Suspended(f"{why}, so it was given back at the end of a step")

    def _known_rows(self) -> dict[str, StepRow]:
        known = self.run.known_steps()
        if known.rows is None:
            with self.run.books_here() as books:
                known.rows = steps.read(books, self.run.id)
        return known.rows

    def _note_line(self) -> None:
        frame = inspect.currentframe()
        while frame and str(frame.f_globals.get("__name__")).startswith(_PACKAGE):
            frame = frame.f_back
        line = f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame else "?"
        before = self.run.known_steps().lines.get(self.name)
        if before is not None:
            raise SetupError(
                f"The step {self.name!r} is there twice in this attempt: {before}, and {line}. "
                "Give each its own name; in a loop, one with the id in it."
            )
        self.run.known_steps().lines[self.name] = line


def _run_of(state: State, this: _Step) -> CurrentRun:
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
