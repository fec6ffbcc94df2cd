"""The sites of the process tests, for the app with the tasks that do harm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from flask_cronjobs import TickReport
from tests.faults import jobs_app
from tests.processes import jobs_app as plain_app
from tests.processes import support

APP = jobs_app.__name__
#: A moment that is over, by either database's reckoning.


class Site(support.Site):
    """A `Site` whose processes know the tasks of `tests.faults.jobs_app` too."""

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> support.Tick:
        """Start ``flask`` with *args*; the later ``--app`` is the one that counts."""
        return super().start("--app", APP, *args, env=env)

    def tick_here(self) -> TickReport:
        """Run a tick in this process."""
        with self.app.app_context():
            return plain_app.jobs.tick()

    def cancel(self, run_id: int) -> str:
        """Cancel a run as an operator; its status after that."""
        with self.app.app_context():
            return plain_app.jobs.cancel(run_id).status

    def tick_until_done(self) -> None:
        """Tick here, with all leases run out, until every run has come to its end."""
        live = ("queued", "failed", "running")
        for _ in range(20):
            self.expire()
            self.tick_here()
            if not any(self.statuses().get(status) for status in live):
                return
        raise AssertionError(f"There are runs left after 20 ticks: {self.statuses()}")


@contextmanager
def site(url: str, folder: Path, **config: Any) -> Iterator[Site]:
    """A `Site` on *url*, closed at the end; *config* goes over `QUICK`."""
    made = Site(url, folder, {**support.QUICK, **config})
    try:
        yield made
    finally:
        made.close()


def one(engine: Engine, sql: str, **parameters: object) -> Any:
    """The one row of an SQL statement, which is committed."""
    with engine.begin() as connection:
        return connection.execute(text(sql), parameters).one()
