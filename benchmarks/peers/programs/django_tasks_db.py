"""django-tasks-db: the command ``db_worker --batch``, without its delay at the start."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import call_command
from django.db import transaction

from ..program import Program

address = urlsplit(os.environ["PEERS_URL"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": address.path.strip("/"),
            "USER": address.username,
            "HOST": address.hostname,
            "PORT": address.port,
        }
    },
    INSTALLED_APPS=["django_tasks_db"],
    TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
    USE_TZ=True,
)
django.setup()

from django_tasks import task  # noqa: E402  # Django must be set up first.


class DjangoTasks(Program):
    """Jobs are kept. There is no way to enqueue several in one call."""

    def prepare(self) -> None:
        call_command("migrate", verbosity=0)

    def load(self) -> None:
        for chunk in self.chunks():
            with transaction.atomic():
                for number in chunk:
                    noop.enqueue(number)

    def work(self) -> None:
        call_command("db_worker", batch=True, startup_delay=False, verbosity=0)

    def enqueue(self) -> None:
        with self.timed():
            for number in self.singly():
                noop.enqueue(number)


@task
def noop(number: int) -> None:
    """Note the call."""
    program.calls.note(number)


if __name__ == "__main__":
    program = DjangoTasks()
    program.main()
