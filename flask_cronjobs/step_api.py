"""What `CronJobs` offers a handler of long work: durable steps, pauses, and signals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from .errors import MAX_DELAY
from .jobs.state import state_of
from .registry.validation import given_by_position
from .types import JSON

if TYPE_CHECKING:
    from .models import JobRun

T = TypeVar("T")


class StepMethods:
    """The methods of `CronJobs` for durable steps. All but `signal` are for handlers alone.

    A step has a name, of 1 to 200 characters, which is there once in an attempt. What ends an
    attempt behind it, on purpose, is an interruption; code that catches ``Exception`` passes it on.
    """

    @given_by_position
    def step(
        self,
        name: str,
        func: Callable[..., T],
        /,
        *args: Any,
        timeout: float | timedelta | None = None,
        **kwargs: Any,
    ) -> T:
        """Call *func*, unless the step *name* of this run has ended; return its result.

        :param name: what the step is, such as ``"totals"``.
        :param func: does the work; called with *args* and *kwargs*. It must not commit
            ``db.session``. If it is an async function, await the step.
        :param timeout: seconds that *func* may take; then the attempt fails as timed out.
        :returns: what *func* returned, as JSON gives it back: a tuple as a list.
        :raises SetupError: it is called outside a run, inside another step, with a name that this
            attempt has had, or while ``db.session`` has uncommitted work; or the task has
            ``atomic=True``.
        :raises PayloadError: the result is not JSON, or larger than
            ``CRONJOBS_MAX_PAYLOAD_BYTES``.
        :raises AtomicCommit: *func* committed.

        What *func* did in ``db.session``, its result, and a look that the run is still this
        worker's are one commit. If *func* raises, all of it is rolled back.
        """
        from .steps import step

        return cast("T", step(state_of(), name, func, args, kwargs, timeout))

    @overload
    def each(
        self, name: str, next_ids: Callable[[Any], Awaitable[Iterable[T]]]
    ) -> AsyncIterator[list[T]]: ...

    @overload
    def each(self, name: str, next_ids: Callable[[Any], Iterable[T]]) -> Iterator[list[T]]: ...

    def each(self, name: str, next_ids: Callable[[Any], Any]) -> Any:
        """Go through many rows chunk by chunk: for use in a ``for`` loop.

        :param name: as of `step`.
        :param next_ids: returns the next ids, in order, after the one that it is given, which is
            the last of the chunk before, or None at first; an empty list at the end. If it is an
            async function, use ``async for``.
        :returns: an iterator of lists of ids.
        :raises SetupError: as of `step`; or *next_ids* returns ids up to the same one again.

        What the loop's body does in ``db.session`` with a chunk, and the place, are one commit,
        when the loop asks for the next chunk. If the body raises, or leaves the loop, the chunk is
        rolled back. The body must not commit, and calls no other step.
        """
        from .steps import each

        return each(state_of(), name, next_ids)

    def sleep(self, name: str, delay: float | timedelta) -> None:
        """End this attempt, which does not count, and go on behind this line later.

        :param name: as of `step`.
        :param delay: seconds (a number or a `timedelta`), at most a year.
        :raises SetupError: as of `step`.

        The time begins when the run first comes here. No worker is held meanwhile.
        """
        from .steps import pause

        pause(state_of(), "sleep", name, delay)

    def wait(self, name: str, timeout: float | timedelta = MAX_DELAY) -> JSON:
        """Return the payload of the signal *name*; end this attempt until it comes.

        :param name: as of `step`; the same as of the signal.
        :param timeout: seconds (a number or a `timedelta`) from when the run first comes here, at
            most a year (366 days), the default.
        :returns: the payload; None if no signal came in time.
        :raises SetupError: as of `step`.

        The attempt does not count, and no worker is held meanwhile. A signal that was sent before
        is there at once.
        """
        from .steps import pause

        return pause(state_of(), "wait", name, timeout)

    def signal(self, run: JobRun | int | str, name: str, payload: object = True) -> bool:
        """Send a payload to a run that waits for it, or will: in ``db.session``.

        :param run: the run, its id or its idempotency key.
        :param name: the name of the `wait`.
        :param payload: plain JSON, but not None.
        :returns: whether `wait` returns this payload. Not if another was first, the wait has
            timed out, or the run has ended.
        :raises NotFound: there is no such run.
        :raises PayloadError: *payload* is None, not plain JSON, or too large.

        Your commit sends it, and makes a run due that waits.
        """
        from .steps import signal

        return signal(state_of(), run, name, payload)
