"""``effects``, ``prune``, ``init``, ``doctor`` and ``crontab``."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click
from flask import Flask
from flask.cli import ScriptInfo, pass_script_info

from ..db.create import are_tables_missing, create_tables, set_storage, set_wal
from ..db.engines import how_to_migrate, refuse_shared_memory
from ..errors import SetupError
from ..jobs.doctor import examine
from ..jobs.health import Finding
from ..jobs.humanize import minute, plural
from ..jobs.once_effects import effect_done, effect_redo, list_effects
from ..jobs.pruning import prune_all
from ..jobs.state import state_of
from ..text import one_line
from .output import (
    Answer,
    Listing,
    admin_command,
    list_command,
    print_finding,
    refuse_to_list,
    since,
)
from .params import JSON_FLAG, actor
from .run_actions import progress_bar


@list_command(
    "effects",
    "flask jobs admin effects",
    "flask jobs admin effects --done mail:5",
    "flask jobs admin effects --redo mail:5",
    limit=50,
    most=500,
)
@click.option("--done", metavar="KEY", help="It was done: do not do it again.")
@click.option("--redo", metavar="KEY", help="It was not done: do it again.")
@click.option("--all", "everything", is_flag=True, help="Also list those that are done.")
def effects(
    done: str | None, redo: str | None, everything: bool, limit: int, before: int | None
) -> Listing | None:
    """List effects begun or in doubt, or resolve one in doubt."""
    if done is not None and redo is not None:
        raise click.UsageError("Give --done or --redo, not both.")
    key, settle, became = done, effect_done, "done. It will not be done again."
    if key is None:
        key, settle, became = redo, effect_redo, "not done. The next call does it."
    if key is None:
        return _list_effects(everything, limit, before)
    refuse_to_list()
    settle(state_of(), key, actor())
    click.echo(f"{one_line(key)}: marked as {became}")
    return None


def _list_effects(everything: bool, limit: int, before: int | None) -> Listing:
    found = list_effects(state_of(), open_only=not everything, before=before, limit=limit)
    headers = ("ID", "STATE", "RUN", "SINCE", "KEY")
    cells = (
        (row.id, row.state, row.run_id, since(row.created_at, found.now), row.key)
        for row in found.rows
    )
    none = "No effects." if everything else "No effect is being done or in doubt."
    return Listing("effects", found, headers, cells, none)


@admin_command("prune", "flask jobs admin prune --dry-run", options=[JSON_FLAG])
@click.option("--dry-run", is_flag=True, help="Only count.")
def prune(dry_run: bool) -> Answer:
    """Delete runs older than their retention. Each tick deletes a few, too."""
    state = state_of()
    found = prune_all(state, dry_run=True)
    if not dry_run:
        with progress_bar("Prune", found) as advance:
            found = prune_all(state, actor=actor(), progress=advance)
    text = f"{'Would prune' if dry_run else 'Pruned'} {plural(found, 'run')}."
    return Answer({"runs": found, "dry_run": dry_run}, text)


@admin_command("init", "flask jobs admin init", options=[JSON_FLAG])
@click.option("--force", is_flag=True, help="Create them even if the app uses migrations.")
def init(force: bool) -> Answer:
    """Create missing job tables, and set up old ones.

    It sets SQLite to WAL mode, and tells PostgreSQL when to vacuum job_runs. In an app with
    migrations, let those create the tables instead.
    """
    engine = state_of().engine
    refuse_shared_memory(engine)
    if not force and are_tables_missing(engine) and (migrate := how_to_migrate(engine)):
        raise click.ClickException(
            "This app uses migrations. If this command created the tables, the next migration "
            f"would find nothing to do. {migrate}. (--force creates them.)"
        )
    wal = set_wal(engine)
    vacuum = not are_tables_missing(engine) and set_storage(engine)
    created = create_tables(engine)
    text = [f"Created {', '.join(created)}." if created else "All tables exist."]
    if wal:
        text.append("Set SQLite's journal mode to WAL.")
    if vacuum:
        text.append("Set when to vacuum job_runs.")
    return Answer({"created": created}, "\n".join(text))


@admin_command(
    *("doctor", "flask jobs admin doctor", "flask jobs admin doctor --strict --json"),
    options=[JSON_FLAG],
)
@click.option("--strict", is_flag=True, help="Exit 1 for a warning, too.")
def doctor(strict: bool) -> Answer:
    """Find what is wrong, and say what to do.

    Exits 1 if anything is an error.
    """
    findings = examine(state_of())
    bad = {"error", "warning"} if strict else {"error"}
    failed = any(finding.level in bad for finding in findings)
    return Answer({"findings": findings}, partial(_print, findings), status=int(failed))


def _print(findings: Sequence[Finding]) -> None:
    for each in findings:
        started = f" (since {minute(each.since)})" if each.since else ""
        what = each.sentence if each.level in ("warning", "error") else each.what
        print_finding(each, f"{each.id}: {what}{started}")


def wake_texts(
    folder: Path, command: Sequence[str], app: str | None, log: Path, grace: float
) -> dict[str, str]:
    """Return what starts ticks: a crontab line, a systemd unit and a systemd timer.

    :param command: the program that ticks and its arguments; all paths are absolute.
    :param app: the value of FLASK_APP; None if Flask finds the app without it.
    :param grace: seconds that a handler may go on after SIGTERM, and again after it is interrupted.
    :raises SetupError: a part has a control character.
    """
    for part in (str(folder), *command, app or "", str(log)):
        if any(ord(char) < 32 or ord(char) == 127 for char in part):
            raise SetupError(
                f"{part!r} has a control character, such as a line break, which no line of a "
                "crontab can hold. Rename it, or write the line by hand."
            )
    variable = f"FLASK_APP={shlex.quote(app)} " if app else ""
    line = (
        f"* * * * * cd {shlex.quote(str(folder))} && {variable}{shlex.join(command)} "
        f">> {shlex.quote(str(log))} 2>&1"
    )
    environment = f"Environment={_quoted('FLASK_APP=' + app)}\n" if app else ""
    start, stop = " ".join(map(_quoted, command)), f"{grace * 2 + 10:.0f}"
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
#: systemd does not start a oneshot unit again while it is still running.
_TIMER = """\
[Unit]
Description=Flask-CronJobs: a tick each minute

[Timer]
OnCalendar=*-*-* *:*:00
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


@admin_command(
    "crontab",
    "flask --app shop jobs admin crontab",
    "(crontab -l; flask --app shop jobs admin crontab) | crontab -",
    "flask --app shop jobs admin crontab --systemd",
    options=[JSON_FLAG],
)
@click.option("--systemd", is_flag=True, help="Print systemd units instead.")
@click.option("--log", "log", type=click.Path(dir_okay=False, path_type=Path), help="The log file.")
@pass_script_info
def crontab(info: ScriptInfo, systemd: bool, log: Path | None) -> Answer:
    """Print the crontab line to install, or systemd units.

    All paths are absolute, so the line works in cron's environment.
    """
    state = state_of()
    log, grace = (log or _log(state.app)).absolute(), state.settings.shutdown_grace
    app = _absolute_app(info.app_import_path) if info.app_import_path else None
    texts = wake_texts(Path.cwd(), (*_flask(), "jobs", "tick"), app, log, grace)
    return Answer(texts, partial(_print_texts, texts, systemd, log, state.app.config))


def _print_texts(
    texts: Mapping[str, str], systemd: bool, log: Path, config: Mapping[str, object]
) -> None:
    if systemd:
        click.echo(f"# /etc/systemd/system/cronjobs.service\n{texts['service']}")
        click.echo(f"# /etc/systemd/system/cronjobs.timer\n{texts['timer']}")
        click.echo("# Then: systemctl daemon-reload && systemctl enable --now cronjobs.timer")
    else:
        click.echo(texts["crontab"])
        _warn_of_log(log)
    _warn_of_environment(config)


def _log(app: Flask) -> Path:
    """Return a log in an existing folder: if the shell cannot open the log, no tick starts."""
    log = Path(app.instance_path, "cronjobs.log")
    return log if log.parent.is_dir() and _is_writable(log) else Path.cwd() / log.name


def _is_writable(log: Path) -> bool:
    effective = os.access in os.supports_effective_ids
    return os.access(log if log.exists() else log.parent, os.W_OK, effective_ids=effective)


def _absolute_app(app: str) -> str:
    """Return FLASK_APP with an absolute path; the name of a module stays."""
    path, colon, rest = app.partition(":")
    if path.endswith(".py") or os.sep in path:
        return f"{Path(path).absolute()}{colon}{rest}"
    return app


def _flask() -> tuple[str, ...]:
    """Return the ``flask`` next to this Python, or this Python with ``-m flask``."""
    beside = Path(sys.executable).with_name("flask")
    if beside.is_file() and os.access(beside, os.X_OK):
        return (str(beside),)
    python = sys.executable or shutil.which("python3")
    if not python:
        raise SetupError("There is no Python on PATH. Write the crontab line by hand.")
    return (python, "-m", "flask")


def _escaped(text: str) -> str:
    """Escape *text* for a unit file, where ``%`` begins a specifier."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Quote *text* as one word of a unit file."""
    plain = _escaped(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{plain}"' if any(char in plain for char in " \t\"';\\") else plain


def _warn_of_environment(config: Mapping[str, object]) -> None:
    name = _variable_of(str(config.get("SQLALCHEMY_DATABASE_URI")))
    if name is not None:
        click.echo(
            f"The app's database URL seems to come from the variable {name} of this shell. Ticks "
            "do not see it, and would use another database. Set it in .env (with python-dotenv), "
            "at the top of the crontab, or as Environment= in the unit.",
            err=True,
        )


def _variable_of(url: str) -> str | None:
    """Return the variable of this shell with *url*; apps often change the scheme, so ignore it."""
    _, _, address = url.partition("://")
    for name, value in os.environ.items():
        if address and value.partition("://")[2] == address and not _is_in_dotenv(name):
            return name
    return None


def _is_in_dotenv(name: str) -> bool:
    """Return whether the variable is in a file that Flask reads, also under cron."""
    if find_spec("dotenv") is None:
        return False
    folders = (Path.cwd(), *Path.cwd().parents)
    files = (folder / file for folder in folders for file in (".env", ".flaskenv"))
    line = re.compile(rf"^\s*(export\s+)?{re.escape(name)}\s*=", re.MULTILINE)
    return any(line.search(file.read_text()) for file in files if file.is_file())


def _warn_of_log(log: Path) -> None:
    if not log.parent.is_dir():
        click.echo(
            f"The folder of the log is missing: mkdir -p {shlex.quote(str(log.parent))}", err=True
        )
    elif not _is_writable(log):
        click.echo(
            f"This user may not write the log {log}. If cron's may not either, its shell starts no "
            "tick: name another file by --log FILE.",
            err=True,
        )
