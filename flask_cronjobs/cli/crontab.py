"""``crontab``: print the line or the systemd units that start a tick each minute."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from flask import Flask
from flask.cli import ScriptInfo, pass_script_info

from ..core.app_state import state_of
from ..errors import SetupError
from .group import own_script
from .output import Answer, set_up


@set_up(
    "crontab",
    "flask --app shop jobs admin crontab",
    "(crontab -l; flask --app shop jobs admin crontab) | crontab -",
    "flask --app shop jobs admin crontab --systemd",
)
@click.option("--systemd", is_flag=True, help="Print systemd units instead.")
@click.option(
    "--log",
    "log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the log to this file.",
)
@pass_script_info
def crontab(info: ScriptInfo, systemd: bool, log: Path | None) -> Answer:
    """Print the crontab line to install, or systemd units.

    All paths are absolute, so the line works in cron's environment.
    """
    state = state_of()
    log = (log or _default_log(state.app)).absolute()
    app = _absolute_app(info.app_import_path) if info.app_import_path else None
    command = (*_flask(), "jobs", "tick")
    texts = wake_texts(Path.cwd(), command, app, log, state.settings.shutdown_grace)
    return Answer(texts, partial(_print_texts, texts, systemd, log))


def _print_texts(texts: Mapping[str, str], systemd: bool, log: Path) -> None:
    if systemd:
        click.echo(f"# /etc/systemd/system/cronjobs.service\n{texts['service']}")
        click.echo(f"# /etc/systemd/system/cronjobs.timer\n{texts['timer']}")
        click.echo("# Then: systemctl daemon-reload && systemctl enable --now cronjobs.timer")
        return
    click.echo(texts["crontab"])
    if not _is_writable(log):
        click.echo(
            f"This user cannot write the log {shlex.quote(str(log))}. If cron's user cannot "
            "either, no tick will start. Create the folder of the log, or name another file with "
            "--log FILE.",
            err=True,
        )


def wake_texts(
    folder: Path, command: Sequence[str], app: str | None, log: Path, grace: float
) -> dict[str, str]:
    """Return the texts that start ticks: a crontab line, a systemd unit and a systemd timer.

    :param command: the program that ticks and its arguments; all paths are absolute.
    :param app: the value of FLASK_APP; None if Flask finds the app without it.
    :param grace: ``CRONJOBS_SHUTDOWN_GRACE``, in seconds.
    :raises SetupError: a part has a control character.
    """
    for part in (str(folder), *command, app or "", str(log)):
        if any(ord(char) < 32 or ord(char) == 127 for char in part):
            raise SetupError(
                f"{part!r} has a control character, such as a line break, which a crontab "
                "cannot contain. Rename it, or write the line by hand."
            )
    variable = f"FLASK_APP={shlex.quote(app)} " if app else ""
    line = (
        f"* * * * * cd {shlex.quote(str(folder))} && {variable}{shlex.join(command)} "
        f">> {shlex.quote(str(log))} 2>&1"
    )
    environment = f"Environment={_quoted('FLASK_APP=' + app)}\n" if app else ""
    # systemd expands variables in a command, but not in `Environment`.
    start = " ".join(map(_quoted, command)).replace("$", "$$")
    stop = f"{grace * 2 + 10:.0f}"
    # cron ends a line at a "%".
    service = _SERVICE.format(_escaped(str(folder)), environment, start, stop)
    return {"crontab": line.replace("%", "\\%"), "service": service, "timer": _TIMER}


_SERVICE = """\
[Unit]
Description=Flask-CronJobs: one tick

[Service]
Type=oneshot
WorkingDirectory={}
{}ExecStart={}
# SIGTERM goes to the main process only: it lets the handlers finish.
KillMode=mixed
TimeoutStopSec={}
"""
#: The timer. systemd does not start a oneshot unit again while it is still running.
_TIMER = """\
[Unit]
Description=Flask-CronJobs: a tick each minute

[Timer]
OnCalendar=*-*-* *:*:00
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def _default_log(app: Flask) -> Path:
    """Return a log in an existing folder. If the shell cannot open it, no tick starts."""
    log = Path(app.instance_path, "cronjobs.log")
    return log if _is_writable(log) else Path.cwd() / log.name


def _is_writable(log: Path) -> bool:
    effective = os.access in os.supports_effective_ids
    return os.access(log if log.exists() else log.parent, os.W_OK, effective_ids=effective)


def _absolute_app(app: str) -> str:
    """Return FLASK_APP with an absolute path, or the name of a module unchanged."""
    path, colon, rest = app.partition(":")
    if path.endswith(".py") or os.sep in path:
        return f"{Path(path).absolute()}{colon}{rest}"
    return app


def _flask() -> tuple[str, ...]:
    """Return the ``flask`` beside this Python, or this Python with ``-m flask`` or a script."""
    beside, script = Path(sys.executable).with_name("flask"), own_script()
    if not script and beside.is_file() and os.access(beside, os.X_OK):
        return (str(beside),)
    python = sys.executable or shutil.which("python3")
    if not python:
        raise SetupError("There is no Python on PATH. Write the crontab line by hand.")
    return (python, *(script or ("-m", "flask")))


def _escaped(text: str) -> str:
    """Escape *text* for a unit file, where ``%`` begins a specifier."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Quote *text* as one word of a unit file."""
    plain = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"' if any(char in plain for char in " \t\"';\\") else plain
