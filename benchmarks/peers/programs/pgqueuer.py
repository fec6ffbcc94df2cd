"""PgQueuer: asyncpg and uvloop, as its own command runs it. The option is the batch size."""

from __future__ import annotations

from collections.abc import Coroutine

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from ..program import Program


class PgQueuerProgram(Program):
    """Tables are durable (the default): none is UNLOGGED."""

    def prepare(self) -> None:
        async def install() -> None:
            await (await self.queries()).install()

        self.run(install())

    def load(self) -> None:
        async def load() -> None:
            queries = await self.queries()
            with self.timed():
                for chunk in self.chunks():
                    payloads = [str(number).encode() for number in chunk]
                    await queries.enqueue(["noop"] * len(chunk), payloads, [0] * len(chunk))

        self.run(load())

    def work(self) -> None:
        self.run(self.worker(QueueExecutionMode.drain))

    def listen(self) -> None:
        self.run(self.worker(QueueExecutionMode.continuous))

    async def worker(self, mode: QueueExecutionMode) -> None:
        """Run a worker in *mode*."""
        queuer = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self.url))
        note = self.calls.note

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            note(int(job.payload or b""))

        await queuer.run(batch_size=int(self.option), mode=mode)

    def enqueue(self) -> None:
        async def enqueue() -> None:
            queries = await self.queries()
            with self.timed():
                for number in self.singly():
                    await queries.enqueue("noop", str(number).encode())

        self.run(enqueue())

    async def queries(self) -> Queries:
        """Connect."""
        return Queries(AsyncpgDriver(await asyncpg.connect(self.url)))

    def run(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run on the event loop that PgQueuer's own command uses."""
        uvloop.run(coroutine)


if __name__ == "__main__":
    PgQueuerProgram().main()
