"""The app of the process tests, whose runs Celery or RQ executes; the workers of both, and a site.

``celery -A tests.process.executor_app worker`` and ``python -m tests.process.executor_app`` (of RQ)
are the workers. Environment variables name the executor and its broker.
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

EXECUTOR = "JOBS_APP_EXECUTOR"
BROKER = "JOBS_APP_BROKER"
#: How ``python -m`` and Celery find this module.
MODULE = "tests.process.executor_app"


def create_app() -> Flask:
    """The app of the process tests, with its executor."""
    return with_executor(jobs_app.create_app(), os.environ[EXECUTOR], os.environ[BROKER])


def with_executor(app: Flask, executor: str, broker: str) -> Flask:
    """*app*, with an executor initialized on it."""
    if executor == "celery":
        from celery import Celery

        from flask_cronjobs.executors.celery import init

        celery = Celery("tests", broker=broker)
        celery.conf.broker_transport_options = {"visibility_timeout": 3}
        celery.conf.worker_cancel_long_running_tasks_on_connection_loss = False
        celery.conf.broker_connection_retry_on_startup = True
        init(celery, app)
    else:
        from redis import Redis

        from flask_cronjobs.executors import rq

        rq.init(Redis.from_url(broker), app)
    return app


def __getattr__(name: str) -> Any:
    # What Celery's command looks for; Flask's looks for "app", too.
    if name in ("celery", "app") and os.environ.get(EXECUTOR) == "celery":
        return create_app().extensions["celery"]
    raise AttributeError(name)


class ExecutorSite(Site):
    """A `Site` with workers of an executor."""

    def make_app(self) -> Flask:
        """The app in the test's own process, which hands runs on as well."""
        app = jobs_app.create_app(self.url, self.trace_file, self.config)
        return with_executor(app, self.env[EXECUTOR], self.env[BROKER])

    def start_worker(self, *args: str, **env: str) -> Tick:
        """Start a worker of the executor."""
        if self.env[EXECUTOR] == "rq":
            return self.start_python(MODULE, *args, env=env)
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
def executor_site(url: str, folder: Path, executor: str, broker: Broker) -> Iterator[ExecutorSite]:
    """A site whose queue ``default`` an *executor* executes."""
    broker.renew()
    config = {**QUICK, "CRONJOBS_EXECUTORS": {"default": executor}}
    env = {EXECUTOR: executor, BROKER: broker.url}
    made = ExecutorSite(url, folder, config, env, module=MODULE)
    try:
        yield made
    finally:
        made.close()


if __name__ == "__main__":
    from rq import Worker

    app = create_app()
    with app.app_context():
        Worker(["default"], connection=app.extensions["cronjobs.rq"]).work()
