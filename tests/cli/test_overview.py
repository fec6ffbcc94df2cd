"""``flask jobs admin``: its output, questions, refusals and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.cli.crontab import wake_texts
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.models import JobRun
from tests.python import python
from tests.rows import Rows, ago

from .conftest import Admin

# The overview


def test_overview_of_an_empty_app_teaches(admin: Admin) -> None:
    output = admin.ok()
    assert output.startswith("NEVER  1 thing needs attention\nerror   No tick has run yet")
    assert "add schedule= to a task" in output


def test_times_are_in_the_zone_of_the_configuration(admin: Admin, rows: Rows, app: Flask) -> None:
    definition = rows.definition("daily", schedule="0 7 * * *")
    slot = ago(3600).replace(second=0, microsecond=0)
    why: dict[str, Any] = {"error_type": "Missed", "scheduled_for": slot, "finished_at": ago(5)}
    rows.run("skipped", definition_id=definition, **why)
    rows.tick()
    assert f"missed, at {slot:%Y-%m-%d %H:%M} UTC" in admin().output
    object.__setattr__(state_of(app).settings, "timezone", "Asia/Tokyo")
    tokyo = f"{slot + timedelta(hours=9):%Y-%m-%d %H:%M} JST"
    assert f"missed, at {tokyo}" in admin().output
    assert f"(since {tokyo})" in admin("doctor").output


def test_overview_shows_what_needs_attention_then_the_schedules(
    admin: Admin, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="daily")(lambda: None)
    definition = rows.definition("daily", schedule="0 7 * * *", timezone="Europe/Berlin")
    rows.run("succeeded", age=9, definition_id=definition, job_type="daily")
    rows.run("skipped", age=5, definition_id=definition, job_type="daily")
    rows.tick(succeeded=4)
    rows.run("dead", error_type="OSError", job_type="daily")
    rows.effect("e", state="in_doubt")
    output = admin.ok()
    assert output.startswith("WARN  2 things need attention\nLast")
    parts = "in doubt (", "OSError", "Schedules", "0 7 * * *", ".-"
    assert sorted(parts, key=output.index) == list(parts)
    data = admin.data()
    assert data["verdict"]["word"] == "ok"
    assert data["dead"][0]["count"]["value"] == 1
    assert data["definitions"]["rows"][0]["cells"][0]["status"] == "succeeded"


def test_output_in_a_pipe_is_plain_and_whole(admin: Admin, rows: Rows) -> None:
    name, task = "a_definition_with_a_very_long_name_" * 3, "t" * 90
    definition = rows.definition(name)
    rows.run("dead", error_type="module.that.is.deep." * 8, job_type=task, definition_id=definition)
    rows.tick(host="a-host-with-a-name")
    for args, whole in (((), name), (("list",), task)):
        output = admin.ok(*args)
        assert "\x1b" not in output
        assert whole in output
        assert "…" not in output


# Usage


def test_bad_usage_exits_2_and_says_why(admin: Admin) -> None:
    for args, message in (
        ("--json list", "jobs admin list --json"),
        ("retry", "Give ids, or a filter such as --task NAME."),
        ("cancel 1 --task x", "Give ids or a filter, not both."),
        ("list --status late", "'late' is not one of"),
        ("list --older-than soon", "'soon' is not a duration."),
        ("list --limit 0", "0 is not in the range"),
        ("list --error=", "it is empty, and would match every run"),
        ("cancel --yes --error=", "it is empty, and would match every run"),
        ("show abc", "'abc' is not an id"),
        ("effects --done a --redo a", "Give --done or --redo, not both."),
        *(
            (f"{change} --json", "--json is only for lists and views. Leave it out.")
            for change in (
                "effects --done a",
                "effects --redo a",
                *(f"batches b --{verb}" for verb in ("retry", "cancel", "close")),
            )
        ),
        ("batches --retry", "Give the KEY of the batch, too."),
        ("batches b --retry --cancel", "Give only one of --retry, --cancel and --close."),
        ("--no-such-option", "No such option"),
        *(
            (f"retry {options} --payload {{}}", "--payload changes one run. Give exactly one ID")
            for options in ("", "1 2", "--task send", "1 --task send")
        ),
    ):
        assert message in admin.refused(*args.split(), code=2)


# prune, init


def test_prune_counts_then_deletes(admin: Admin, rows: Rows) -> None:
    rows.run("succeeded", age=15 * 86400)
    assert admin.ok("prune", "--dry-run") == "Would prune 1 run.\n"
    assert admin.data("prune") == {"runs": 1, "dry_run": False}
    assert admin.ok("prune") == "Pruned 0 runs.\n"


def test_init_creates_the_tables_once(app: Flask, db: SQLAlchemy) -> None:
    CronJobs(app)
    runner = app.test_cli_runner()
    created = json.loads(runner.invoke(args=["jobs", "admin", "init", "--json"]).output)["created"]
    assert sorted(created) == sorted(JobRun.metadata.tables)
    assert runner.invoke(args=["jobs", "admin", "init"]).output == "All tables exist.\n"


def test_init_says_that_it_set_a_file_of_sqlite_to_wal(admin: Admin) -> None:
    """The tables may exist because a migration has made them and left the journal mode."""
    output = "All tables exist.\nSet SQLite's journal mode to WAL.\n"
    assert admin.ok("init") == output


# crontab

APP = """
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_cronjobs import CronJobs

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///" + app.root_path + "/jobs.sqlite"
SQLAlchemy(app)
jobs = CronJobs()


@jobs.task
def hello():
    print("hello from the job", flush=True)


jobs.init_app(app)
"""


#: A script of the app's own, as Flask's documentation has it.
SCRIPT = """

def make():
    return app


from flask.cli import FlaskGroup

cli = FlaskGroup(create_app=make)
if __name__ == "__main__":
    cli()
"""


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("app.py", ["-m", "flask", "--app", "app.py"]),
        ("my app.py", ["-m", "flask", "--app", "my app.py"]),
        ("my script.py", ["my script.py"]),
        ("script.py", ["-m", "script"]),
    ],
)
@pytest.mark.slow
def test_the_crontab_line_works_in_the_environment_of_cron(
    tmp_path: Path, name: str, call: list[str]
) -> None:
    folder = tmp_path / "a folder of 100%"
    folder.mkdir()
    (folder / name).write_text(APP + SCRIPT)

    def admin(*args: str) -> str:
        return python(*call, "jobs", "admin", *args, cwd=folder).stdout

    admin("init")
    admin("run", "hello")
    line = admin("crontab").strip()
    assert line.startswith("* * * * * cd ")
    assert "100\\%" in line
    command = line.removeprefix("* * * * * ").replace("\\%", "%")
    bare = {"HOME": "/", "LOGNAME": "x", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", command], cwd="/", env=bare, check=True)
    log = (folder / "cronjobs.log").read_text()
    assert "hello from the job" in log
    assert "1 succeeded" in log


@pytest.fixture
def not_root(admin: Admin) -> Iterator[None]:
    """Run as another user: tests may run as root, who may write everywhere."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield
    os.seteuid(was)


@pytest.mark.usefixtures("not_root")
def test_crontab_warns_of_a_log_that_cannot_be_written(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    result = admin("crontab")
    assert "This user cannot write the log /cronjobs.log. If cron's user cannot" in result.stderr
    assert "--log FILE" in result.stderr
    assert result.stdout.count("\n") == 1
    assert "cannot write" not in admin("crontab", "--log", "/dev/null").stderr


@pytest.mark.usefixtures("not_root")
def test_crontab_does_not_choose_an_instance_folder_that_cannot_be_written(
    admin: Admin, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.instance_path = "/"
    monkeypatch.chdir("/tmp")
    result = admin("crontab")
    assert ">> /tmp/cronjobs.log 2>&1" in result.stdout
    assert "cannot write" not in result.stderr


def test_systemd_units_escape_what_systemd_would_read() -> None:
    texts = wake_texts(
        folder=Path("/srv/100% app"),
        command=("/venv/bin/flask", "jobs", "tick", "$x y"),
        app="my $app.py",
        log=Path("/var/log/jobs.log"),
        grace=20.0,
    )
    assert "WorkingDirectory=/srv/100%% app\n" in texts["service"]
    assert 'ExecStart=/venv/bin/flask jobs tick "$$x y"\n' in texts["service"]
    assert 'Environment="FLASK_APP=my $app.py"\n' in texts["service"]
    assert "TimeoutStopSec=50\n" in texts["service"]
    assert "OnCalendar=*-*-* *:*:00\n" in texts["timer"]
    assert texts["crontab"].count("\\%") == 1
