"""Chancy, with its executor for coroutines. The option is how many jobs run at once.

Without ``eager_polling`` it would claim that many every five seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from chancy import Chancy, Queue, Worker, job
from chancy.app import setup_default_logger

from ..program import Program


class ChancyProgram(Program):
    """Jobs are kept; outcomes are written once a second (the default)."""

    def __init__(self) -> None:
        super().__init__()
        self.chancy = Chancy(self.url, log=setup_default_logger(logging.WARNING))

    def prepare(self) -> None:
        async def prepare() -> None:
            async with self.chancy:
                await self.chancy.migrate()

        asyncio.run(prepare())

    def load(self) -> None:
        with self.chancy, self.timed():
            jobs = [noop.job.with_kwargs(number=number) for number in range(self.jobs)]
            for _ in self.chancy.sync_push_many(jobs):
                pass

    def work(self) -> None:
        async def until_done(worker: Worker) -> None:
            while self.calls.done() < self.jobs:
                await asyncio.sleep(0.02)
            await worker.stop()

        self.run(until_done)

    def listen(self) -> None:
        self.run(Worker.wait_for_shutdown)

    def run(self, until: Callable[[Worker], Awaitable[object]]) -> None:
        """Run a worker as long as *until* takes."""
        queue = Queue(
            "default",
            concurrency=int(self.option),
            executor=Chancy.Executor.Async,
            eager_polling=True,
        )

        async def run() -> None:
            async with self.chancy:
                await self.chancy.declare(queue, upsert=True)
                async with Worker(self.chancy) as worker:
                    await until(worker)

        asyncio.run(run())

    def enqueue(self) -> None:
        with self.chancy, self.timed():
            for number in self.singly():
                self.chancy.sync_push(noop.job.with_kwargs(number=number))


@job(queue="default")
async def noop(*, number: int) -> None:
    """Note the call."""
    program.calls.note(number)


if __name__ == "__main__":
    program = ChancyProgram()
    program.main()
