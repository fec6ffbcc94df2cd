"""``run``: queue a run of a definition or a task."""

from __future__ import annotations

from datetime import datetime

import click

from ..jobs.definitions.actions import queue_run
from ..jobs.humanize import duration
from ..jobs.state import state_of
from ..registry.options import EnqueueOptions
from ..text import printable
from ..types import JSON
from .group import JobsGroup, examples
from .output import moment, print_json
from .params import actor, age, complete_names, json_object, json_option, time_in_zone

group: JobsGroup = JobsGroup("run")


@group.command(
    "run",
    epilog=examples(
        "flask jobs admin run nightly_report",
        "flask jobs admin run send_mail --payload '{\"user_id\": 1}'",
        "flask jobs admin run send_mail --delay 10m --key mail-1",
    ),
)
@click.argument("name", shell_complete=complete_names)
@click.option("--payload", type=json_object, metavar="JSON", help="The handler's arguments.")
@click.option(
    "--at", "run_at", type=time_in_zone, metavar="TIME", help="Not before TIME: 2026-11-20T06:00Z."
)
@click.option("--delay", type=age, metavar="AGE", help="Not before AGE from now: 10m.")
@click.option("--queue", metavar="NAME", help="Instead of the task's own queue.")
@click.option("--key", metavar="KEY", help="Idempotency key: do nothing if a run has it.")
@json_option
def run(
    name: str,
    payload: dict[str, JSON] | None,
    run_at: datetime | None,
    delay: float | None,
    queue: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Queue a run of a definition or a task, due now or later.

    Until it has ended, a definition with overlap="skip" skips its slots.
    """
    if run_at is not None and delay is not None:
        raise click.UsageError("Give --at or --delay, not both.")
    options = EnqueueOptions(run_at=run_at, delay=delay, idempotency_key=key, queue=queue)
    try:
        queued = queue_run(state_of(), name, payload, actor(), options=options)
    except TypeError as error:
        raise click.ClickException(f"{error}. Give the arguments as --payload JSON.") from error
    if as_json:
        print_json(queued._asdict())
        return
    whose = f"run {queued.id} of {printable(name)}"
    if not queued.is_new:
        click.echo(f"Queued nothing: {whose} has the key already.")
    elif run_at is not None:
        click.echo(f"Queued {whose}, due {moment(run_at)}.")
    elif delay:
        click.echo(f"Queued {whose}, due in {duration(delay)}.")
    else:
        click.echo(f"Queued {whose}. The next tick runs it.")
