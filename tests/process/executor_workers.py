"""A site whose runs an executor executes, and workers of the executor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flask import Flask

from tests.brokers import Broker
from tests.process import executor_app, jobs_app
from tests.process.support import QUICK, Site, Tick

#: The lease of these sites, in seconds. Five of them is how long a run may wait in a broker.
LEASE = 2


@contextmanager
def executor_site(
    url: str, folder: Path, executor: str, broker: Broker, **config: Any
) -> Iterator[ExecutorSite]:
    """A site whose queue ``default`` an *executor* executes."""
    broker.renew()
    given = {
        **QUICK,
        "CRONJOBS_LEASE": LEASE,
        "CRONJOBS_EXECUTORS": {"default": executor},
        **config,
    }
    env = {executor_app.EXECUTOR: executor, executor_app.BROKER: broker.url}
    made = ExecutorSite(url, folder, given, env, module=executor_app.__name__)
    try:
        yield made
    finally:
        made.close()


class ExecutorSite(Site):
    """A `Site` with workers of an executor."""

    def make_app(self) -> Flask:
        """The app in the test's own process, which hands runs on as well."""
        app = jobs_app.create_app(self.url, self.trace_file, self.config)
        return executor_app.with_executor(
            app, self.env[executor_app.EXECUTOR], self.env[executor_app.BROKER]
        )

    def start_worker(self, *args: str, **env: str) -> Tick:
        """Start a worker of the executor, and wait until it is ready."""
        if self.env[executor_app.EXECUTOR] == "rq":
            return self.start_python(executor_app.__name__, *args, env=env)
        celery = ("celery", "-A", executor_app.__name__, "worker", "--queues", "default")
        options = args or ("--pool", "prefork", "--concurrency", "2")
        return self.start_python(*celery, "--loglevel", "INFO", *options, env=env)

    def hand_on(self) -> None:
        """Let a tick in this process hand on what is due."""
        self.tick_here()

    def tick_until_ended(self, *ids: int) -> None:
        """Tick again and again until all these runs have ended."""
        ended = ("succeeded", "dead", "cancelled")
        for _ in range(300):
            if all(self.run(run_id).status in ended for run_id in ids):
                return
            self.hand_on()
            time.sleep(0.2)
        raise AssertionError(f"{self.statuses()} {self.trace()} {[t.errors for t in self.ticks]}")
