"""Procrastinate, with psycopg's compiled form. The option is how many jobs run at once."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector

from ..program import Program


class Procrastinate(Program):
    """Jobs are kept (the default)."""

    def __init__(self) -> None:
        super().__init__()
        self.app = App(connector=PsycopgConnector(conninfo=self.url))
        self.noop = self.app.task(name="noop")(self._noop)

    async def _noop(self, number: int) -> None:
        self.calls.note(number)

    def prepare(self) -> None:
        with self.app.open():
            self.app.schema_manager.apply_schema()

    def load(self) -> None:
        with self.app.open(), self.timed():
            for chunk in self.chunks():
                self.noop.batch_defer(*({"number": number} for number in chunk))

    def work(self) -> None:
        self.app.run_worker(wait=False, concurrency=int(self.option))

    def listen(self) -> None:
        self.app.run_worker(concurrency=int(self.option))

    def enqueue(self) -> None:
        with self.app.open(), self.timed():
            for number in self.singly():
                self.noop.defer(number=number)


if __name__ == "__main__":
    Procrastinate().main()
