"""APScheduler 3 with its SQLAlchemy job store, one process, ten threads (the default)."""

from __future__ import annotations

import time

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from ..program import Program


class APScheduler(Program):
    """A job is deleted before it runs. Two such processes would run each job twice."""

    def __init__(self) -> None:
        super().__init__()
        url = self.url.replace("postgresql:", "postgresql+psycopg:")
        self.scheduler = BackgroundScheduler(
            jobstores={"default": SQLAlchemyJobStore(url)},
            job_defaults={"misfire_grace_time": None},
        )

    def prepare(self) -> None:
        self.scheduler.start(paused=True)

    def load(self) -> None:
        self.enqueue()

    def work(self) -> None:
        self.scheduler.start()
        while self.calls.done() < self.jobs:
            time.sleep(0.02)
        self.scheduler.shutdown()

    def enqueue(self) -> None:
        self.scheduler.start(paused=True)
        with self.timed():
            for number in self.singly():
                self.scheduler.add_job(noop, args=[number])


def noop(number: int) -> None:
    """Note the call."""
    program.calls.note(number)


if __name__ == "__main__":
    program = APScheduler()
    program.main()
