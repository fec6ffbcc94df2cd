"""The app of the process tests, whose runs Celery or RQ executes; and the workers of both.

``celery -A tests.process.engine_app worker`` and ``python -m tests.process.engine_app`` (of RQ) are
the workers. Environment variables name the engine and its broker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flask import Flask

from tests.process import harmful_app, jobs_app

ENGINE = "JOBS_APP_ENGINE"
BROKER = "JOBS_APP_BROKER"


def create_app(
    url: str | None = None, trace: Path | None = None, config: Mapping[str, Any] | None = None
) -> Flask:
    """The app of the process tests, with its engine."""
    app = harmful_app.create_app() if url is None else jobs_app.create_app(url, trace, config)
    if os.environ[ENGINE] == "celery":
        from celery import Celery

        from flask_cronjobs.executors.celery import init

        celery = Celery("tests", broker=os.environ[BROKER])
        celery.conf.broker_transport_options = {"visibility_timeout": 3}
        celery.conf.worker_cancel_long_running_tasks_on_connection_loss = False
        celery.conf.broker_connection_retry_on_startup = True
        celery.set_default()
        init(celery, app)
    else:
        from redis import Redis

        from flask_cronjobs.executors import rq

        rq.init(Redis.from_url(os.environ[BROKER]), app)
    return app


def __getattr__(name: str) -> Any:
    if name in ("celery", "app"):  # What Celery's command looks for.
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
