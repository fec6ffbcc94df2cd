"""huey on SQLite, one worker thread. The option is a keyword argument of its storage, or empty."""

from __future__ import annotations

import logging
import os
import signal

from huey import SqliteHuey

from ..program import Program

#: The settings of huey's storage. By default, SQLite decides whether commits are synced to disk.
OPTIONS: dict[str, dict[str, bool]] = {"": {}, "fsync": {"fsync": True}, "no": {"fsync": False}}


class Huey(Program):
    """huey deletes a job before it runs, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.huey = SqliteHuey(filename=self.url, **OPTIONS[self.option])
        self.noop = self.huey.task(name="noop")(self._noop)

    def _noop(self, number: int) -> None:
        self.calls.note(number)
        if number == self.jobs - 1:  # Jobs run in order. SIGINT is huey's signal to stop.
            os.kill(os.getpid(), signal.SIGINT)

    def prepare(self) -> None:
        self.huey.storage.close()

    def load(self) -> None:
        with self.timed():
            for number in range(self.jobs):
                self.noop(number)

    def work(self) -> None:
        logging.disable(logging.INFO)
        self.huey.create_consumer(periodic=False).run()

    def enqueue(self) -> None:
        self.load()


if __name__ == "__main__":
    Huey().main()
