"""Which tasks and threads belong to which async run, so that nothing of it outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from ...current_run import CurrentRun, running
from .at_work import AsyncRun

P = ParamSpec("P")
T = TypeVar("T")


class OwnedWork:
    """Notes the tasks that handlers begin, and their calls in threads of the default executor."""

    def __init__(self) -> None:
        self._runs: dict[CurrentRun, AsyncRun] = {}

    def add(self, run: AsyncRun) -> None:
        """Note what begins in the context of *run* from now on."""
        self._runs[run.run] = run

    def remove(self, run: AsyncRun) -> None:
        """Forget *run*, which has ended."""
        del self._runs[run.run]

    def owner(self) -> AsyncRun | None:
        """Return the run in whose context this is called; None outside of runs."""
        current = running()
        return None if current is None else self._runs.get(current)

    def make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        """Make a task, and note whose it is. For `loop.set_task_factory`."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        run = self.owner()
        if run is not None:
            run.tasks.add(task)
            task.add_done_callback(run.tasks.discard)
        return task

    def executor(self, most: int) -> ThreadPoolExecutor:
        """Return a default executor that notes whose its calls are.

        :param most: how many threads it may have.
        """
        return _Threads(most, self.owner)


async def end_rest(run: AsyncRun) -> None:
    """Cancel the tasks that the handler has left, and wait for them and for its threads."""
    for task in run.tasks:
        task.cancel()
    while rest := [*run.tasks, *map(asyncio.wrap_future, run.threads.copy())]:
        with suppress(asyncio.CancelledError):
            await asyncio.wait(rest)


class _Threads(ThreadPoolExecutor):
    def __init__(self, most: int, owner: Callable[[], AsyncRun | None]) -> None:
        super().__init__(most, thread_name_prefix="cronjobs-async")
        self._owner = owner

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call *fn* in a thread."""
        future = super().submit(fn, *args, **kwargs)
        run = self._owner()
        if run is not None:
            run.threads.add(future)
            future.add_done_callback(run.threads.discard)
        return future
