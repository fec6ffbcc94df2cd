"""The app of the process tests, whose runs Celery or RQ executes; and the workers of both.

``celery -A tests.process.executor_app worker`` and ``python -m tests.process.executor_app`` (of RQ)
are the workers. Environment variables name the executor and its broker.
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask

from tests.process import harmful_app

EXECUTOR = "JOBS_APP_ENGINE"
BROKER = "JOBS_APP_BROKER"


def create_app() -> Flask:
    """The app of the process tests, with its executor."""
    return with_executor(harmful_app.create_app(), os.environ[EXECUTOR], os.environ[BROKER])


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


def work_for_rq() -> None:
    """Be a worker of RQ."""
    from rq import Worker

    app = create_app()
    with app.app_context():
        Worker(["default"], connection=app.extensions["cronjobs.rq"]).work()


if __name__ == "__main__":
    work_for_rq()
