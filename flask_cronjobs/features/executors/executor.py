"""The executor of the queues in ``CRONJOBS_EXECUTORS``, whose runs our workers do not execute."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, cast

from flask import Flask

from ...errors import SetupError
from ...types import Claim

#: The key of the executor in ``app.extensions``.
EXTENSION = "cronjobs.celery"


class Executor(Protocol):
    """Sends runs to Celery; see `flask_cronjobs.executors.celery`."""

    def send(self, queue: str, claims: Sequence[Claim]) -> None:
        """Send the id and the token of each of *claims* to the workers of *queue*.

        If this raises, none of them counts as sent. A message that was sent nevertheless has no
        effect.
        """
        ...

    def check(self, queues: Collection[str]) -> Sequence[str]:
        """Return a sentence for each fault of the broker and its workers."""
        ...


def executor_of(app: Flask) -> Executor:
    """Return the executor of *app*.

    :raises SetupError: the app has none.
    """
    if EXTENSION not in app.extensions:
        raise SetupError(
            f"CRONJOBS_EXECUTORS names 'celery', but no Celery app is initialized on the app "
            f"{app.name!r}. Install Flask-CronJobs[celery], and call "
            "flask_cronjobs.executors.celery.init(celery, app)."
        )
    return cast("Executor", app.extensions[EXTENSION])
