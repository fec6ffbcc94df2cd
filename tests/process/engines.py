"""A site whose runs an engine executes, and workers of the engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.brokers import Broker
from tests.process import engine_app
from tests.process.support import QUICK, Site, Tick

#: The lease of these sites, in seconds. Five of them is how long a run may wait in a broker.
LEASE = 2


@contextmanager
def engine_site(
    url: str, folder: Path, engine: str, broker: Broker, **config: Any
) -> Iterator[EngineSite]:
    """A site whose queue ``default`` an *engine* executes."""
    broker.renew()
    given = {**QUICK, "CRONJOBS_LEASE": LEASE, "CRONJOBS_EXECUTORS": {"default": engine}, **config}
    env = {engine_app.ENGINE: engine, engine_app.BROKER: broker.url}
    made = EngineSite(url, folder, given, env, module=engine_app.__name__)
    try:
        yield made
    finally:
        made.close()


class EngineSite(Site):
    """A `Site` with workers of an engine."""

    def start_worker(self, *args: str, **env: str) -> Tick:
        """Start a worker of the engine, and wait until it is ready."""
        if self.env[engine_app.ENGINE] == "rq":
            return self.start_python(engine_app.__name__, *args, env=env)
        celery = ("celery", "-A", engine_app.__name__, "worker", "--queues", "default")
        options = args or ("--pool", "prefork", "--concurrency", "2")
        return self.start_python(*celery, "--loglevel", "INFO", *options, env=env)

    def hand_on(self, **env: str) -> None:
        """Let a tick hand on what is due."""
        done = self.run_tick(env=env)
        assert done.returncode == 0, done.stderr

    def tick_until_ended(self, *ids: int) -> None:
        """Tick again and again until all these runs have ended."""
        ended = ("succeeded", "dead", "cancelled")
        for _ in range(60):
            if all(self.run(run_id).status in ended for run_id in ids):
                return
            self.hand_on()
            wait_a_moment()
        raise AssertionError(f"{self.statuses()} {self.trace()} {[t.errors for t in self.ticks]}")

    def begun(self) -> list[dict[str, Any]]:
        """What handlers said when they began."""
        return self.trace("begun", "note", "slot")


def wait_a_moment() -> None:
    import time

    time.sleep(0.3)


def kill(pid: int) -> None:
    """Kill a process."""
    os.kill(pid, signal.SIGKILL)
