"""The app of the process tests with an executor: Celery executes its runs.

``celery -A tests.process.executor_app worker`` is a worker. A variable names the broker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flask import Flask

from tests.brokers import Broker
from tests.process import jobs_app
from tests.process.support import QUICK, Site, Tick

BROKER = "JOBS_APP_BROKER"
#: The name by which Flask and Celery find this module.
MODULE = "tests.process.executor_app"


def create_app() -> Flask:
    """Make the app of the process tests, with its executor."""
    return with_celery(jobs_app.create_app(), os.environ[BROKER])


def with_celery(app: Flask, broker: str) -> Flask:
    """Return *app*, with Celery initialized on it."""
    from celery import Celery

    from flask_cronjobs.executors.celery import init

    celery = Celery("tests", broker=broker)
    celery.conf.broker_transport_options = {"visibility_timeout": 3}
    celery.conf.worker_cancel_long_running_tasks_on_connection_loss = False
    celery.conf.broker_connection_retry_on_startup = True
    init(celery, app)
    return app


def __getattr__(name: str) -> Any:
    # Celery's command finds this name, and Flask's finds "app".
    if name in ("celery", "app") and BROKER in os.environ:
        return create_app().extensions["celery"]
    raise AttributeError(name)


class ExecutorSite(Site):
    """A `Site` with workers of Celery."""

    def make_app(self) -> Flask:
        """Make the app in the test's own process; its ticks also hand runs on."""
        app = jobs_app.create_app(self.url, self.trace_file, self.config)
        return with_celery(app, self.env[BROKER])

    def start_worker(self, *args: str, **env: str) -> Tick:
        """Start a worker of Celery."""
        celery = ("celery", "-A", MODULE, "worker", "--queues", "default")
        options = args or ("--pool", "prefork", "--concurrency", "2")
        return self.start_python(*celery, "--loglevel", "INFO", *options, env=env)

    def tick_until_ended(self, *ids: int) -> None:
        """Tick again and again until all these runs have ended."""
        ended = {"succeeded", "dead", "cancelled"}
        for _ in range(300):
            if {status for status, _ in self.ends(*ids)} <= ended:
                return
            self.tick_here()
            time.sleep(0.2)
        raise AssertionError(f"{self.statuses()} {self.trace()} {[t.errors for t in self.ticks]}")


@contextmanager
def executor_site(url: str, folder: Path, broker: Broker) -> Iterator[ExecutorSite]:
    """Yield a site whose queue ``default`` Celery executes."""
    broker.renew()
    config = {**QUICK, "CRONJOBS_EXECUTORS": {"default": "celery"}}
    site = ExecutorSite(url, folder, config, {BROKER: broker.url}, module=MODULE)
    try:
        yield site
    finally:
        site.close()
