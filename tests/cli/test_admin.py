"""``flask jobs admin``: what it prints, asks, refuses, and how it exits."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_cronjobs import CronJobs
from flask_cronjobs.cli import crontab
from flask_cronjobs.cli.crontab import Wake
from flask_cronjobs.jobs.runs.changes import Operator
from flask_cronjobs.jobs.state import state_of
from tests.rows import Rows, ago

Run = Callable[..., Result]


@pytest.fixture
def run(app: Flask, jobs: CronJobs) -> Run:
    def invoke(*args: str, **kwargs: Any) -> Result:
        return app.test_cli_runner().invoke(args=["jobs", "admin", *args], **kwargs)

    return invoke


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def data(result: Result) -> Any:
    return json.loads(ok(result))


# The overview


def test_overview_of_an_empty_app_teaches(run: Run) -> None:
    output = ok(run())
    assert output.startswith("NEVER  No tick has run yet")
    assert "add schedule= to a task" in output


def test_overview_shows_verdict_definitions_dead_orphans_and_doubts(
    run: Run, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="daily")(lambda: None)
    made = rows.definition("daily", schedule="0 7 * * *", timezone="Europe/Berlin")
    rows.run("succeeded", age=9, definition_id=made, job_type="daily")
    rows.run("skipped", age=5, definition_id=made, job_type="daily")
    rows.tick(succeeded=4)
    rows.run("dead", error_type="OSError", job_type="daily")
    rows.run(job_type="gone")
    rows.effect("e", state="in_doubt")
    output = ok(run())
    assert output.startswith("WARN  Ticks are running, but 1 run ended dead in the last 24 h\nLast")
    for part in (".-", "0 7 * * *", "OSError", "gone", "4 succeeded", "in doubt", "dead in 24 h 1"):
        assert part in output
    seen = data(run("--json"))
    assert seen["verdict"]["word"] == "ok"
    assert seen["figures"]["dead"] == {"value": 1, "capped": False}
    assert seen["definitions"]["rows"][0]["cells"][0]["status"] == "succeeded"
    assert seen["orphans"][0]["task"] == "gone"
    assert len(seen["activity"]) == 24


def test_overview_counts_a_last_attempt_among_the_failed_ones(run: Run, rows: Rows) -> None:
    rows.tick(failed=2, dead=1)
    assert "3 failed attempts" in ok(run())


def test_json_before_a_command_is_refused_with_where_to_write_it(run: Run, rows: Rows) -> None:
    result = run("--json", "list")
    assert result.exit_code == 2
    assert "jobs admin list --json" in result.output


def test_output_in_a_pipe_is_plain_and_whole(run: Run, rows: Rows) -> None:
    name, task = "a_definition_with_a_very_long_name_" * 3, "t" * 90
    made = rows.definition(name)
    rows.run("dead", error_type="module.that.is.deep." * 8, job_type=task, definition_id=made)
    rows.tick(host="a-host-with-a-name")
    for args, whole in (((), name), (("list",), task)):
        output = ok(run(*args))
        assert "\x1b" not in output
        assert whole in output
        assert "…" not in output


def test_what_a_terminal_would_obey_is_not_printed(run: Run, rows: Rows) -> None:
    obeyed = "\x1b[2J"
    run_id = rows.run("dead", job_type=f"a{obeyed}", last_error=obeyed, error_type=obeyed)
    rows.failure(run_id, 1, error=obeyed, stack=f"line\n{obeyed}")
    rows.definition(f"b{obeyed}", schedule=obeyed)
    for args in ((), ("list",), ("show", str(run_id)), ("definitions",), ("doctor",)):
        output = run(*args, color=True).output
        assert obeyed not in output
        assert "[2J" in output


# list and show


def test_list_filters_pages_and_prints_json(run: Run, rows: Rows) -> None:
    ids = [rows.run("dead", error_type="OSError") for _ in range(3)]
    rows.run()
    output = ok(run("list", "--status", "dead", "--limit", "2"))
    assert str(ids[2]) in output
    assert "queued" not in output
    again = f"flask jobs admin list --status dead --limit 2 --before {ids[1]}"
    assert f"Older: {again}\n" in output
    page = data(run("list", "--status", "dead", "--before", str(ids[1]), "--json"))
    assert [found["id"] for found in page["runs"]] == [ids[0]]
    assert page["before"] is None
    assert data(run("list", "--error", "oserr", "--newer-than", "2h", "--json"))["runs"]
    assert not data(run("list", "--older-than", "2h", "--json"))["runs"]


def test_older_is_a_whole_command_with_all_that_was_asked(run: Run, rows: Rows) -> None:
    ids = [rows.run("dead", job_type="a task", age=60) for _ in range(2)]
    args = ("--task", "a task", "--newer-than", "2h", "--error", "$", "--stale", "--limit", "1")
    assert "Older" not in run("list", *args).output
    output = ok(run("list", "--task", "a task", "--newer-than", "12d", "--limit", "1"))
    *_, line = output.splitlines()
    words = shlex.split(line.removeprefix("Older: "))
    assert words[:4] == ["flask", "jobs", "admin", "list"]
    assert words[words.index("--newer-than") + 1] == "12d"
    found = data(run(*words[3:], "--json"))["runs"]
    assert [row["id"] for row in found] == ids[:1]


def test_list_goes_on_searching_until_it_has_a_page(
    run: Run, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.jobs.runs.list.WINDOW", 2)
    wanted = rows.run(queue="rare")
    for _ in range(7):
        rows.run()
    page = data(run("list", "--queue", "rare", "--json"))
    assert [found["id"] for found in page["runs"]] == [wanted]


def test_list_says_when_there_is_nothing(run: Run) -> None:
    assert "no runs yet" in ok(run("list"))
    assert "No runs match" in ok(run("list", "--task", "x"))


def test_list_of_an_unknown_task_suggests_one(run: Run, jobs: CronJobs) -> None:
    jobs.task(name="charge")(lambda: None)
    assert ok(run("list", "--task", "charg")) == (
        "No runs match. This app's code declares no task charg. Did you mean 'charge'?\n"
    )


@pytest.mark.parametrize("verb", ["list", "cancel", "retry"])
def test_filter_by_an_unknown_definition_suggests_one(
    run: Run, rows: Rows, jobs: CronJobs, verb: str
) -> None:
    jobs.task(name="mail")(lambda: None)
    rows.definition("nightly")
    said = " There is no definition 'nigtly'. Did you mean 'nightly'?\n"
    assert ok(run(verb, "--definition", "nigtly")).endswith(f"runs match.{said}")
    assert "There is no definition" not in ok(run(verb, "--definition", "nightly"))
    assert f"task: flask jobs admin {verb} --task mail" in ok(run(verb, "--definition", "mail"))


def test_show_leaves_our_own_frames_out_unless_asked(run: Run, rows: Rows) -> None:
    ours = '  File "/lib/flask_cronjobs/engine/worker/runner.py", line 12, in call\n    call()\n'
    theirs = '  File "/srv/shop.py", line 3, in send\n    post()\n'
    run_id = rows.run("dead")
    rows.failure(run_id, 1, stack=f"Traceback:\n{ours}{theirs}ValueError: no\n")
    output = ok(run("show", str(run_id)))
    assert f"Traceback:\n{theirs}ValueError: no" in output
    assert f"Traceback:\n{ours}{theirs}" in ok(run("show", str(run_id), "--frames"))


def test_show_prints_payload_attempts_and_stacks(run: Run, rows: Rows) -> None:
    run_id = rows.run("dead", payload={"user": 7, "password": "hush"}, idempotency_key="k:1")
    rows.failure(run_id, 1)
    output = ok(run("show", str(run_id)))
    for part in ('"user": 7', '"password": "***"', "Attempt 1: failed", "worker web-1:7", "k:1"):
        assert part in output
    assert "Traceback: boom" in output
    assert "took 3.0 s" in output
    assert "hush" not in output
    view = data(run("show", str(run_id), "--json"))
    assert view["row"]["status"] == "dead"
    assert view["attempts"][0]["stack"] == "Traceback: boom"


def test_show_of_an_unknown_run_is_one_line_and_exit_1(run: Run) -> None:
    result = run("show", "4711")
    assert result.exit_code == 1
    assert result.output == (
        "Error: There is no run 4711; it may have been pruned. "
        "To list runs: flask jobs admin list\n"
    )


# retry and cancel


def test_retry_and_cancel_by_id(run: Run, rows: Rows) -> None:
    dead, queued, running = rows.run("dead"), rows.run(), rows.run("running")
    assert "queued again" in ok(run("retry", str(dead)))
    assert rows.get(dead).status == "queued"
    output = ok(run("cancel", str(queued), str(running)))
    assert "cancelled" in output
    assert "asked its worker to stop" in output
    assert (rows.get(queued).last_error or "").endswith("(shell)")


def test_one_refused_id_does_not_stop_the_others(run: Run, rows: Rows) -> None:
    ended, dead = rows.run("succeeded"), rows.run("dead")
    result = run("retry", str(ended), str(dead))
    assert result.exit_code == 1
    assert (
        f"Run {ended} succeeded. To do its work again: flask jobs admin again {ended}"
        in result.output
    )
    assert rows.get(dead).status == "queued"


def test_list_and_show_tell_of_a_pause(run: Run, rows: Rows) -> None:
    run_id = rows.run(age=120, queue="mail")
    ok(run("pause", "--queue", "mail"))
    assert "paused" in ok(run("list"))
    shown = ok(run("show", str(run_id)))
    assert "the queue mail, just now by " in shown
    assert "to resume it: flask jobs admin resume --queue mail" in shown
    (pause,) = data(run("show", str(run_id), "--json"))["pauses"]
    assert (pause["kind"], pause["name"]) == ("queue", "mail")


def test_bulk_counts_and_asks_first(run: Run, rows: Rows) -> None:
    dead = [rows.run("dead", error_type="OSError") for _ in range(3)]
    refused = run("retry", "--error", "OSError", input="n\n")
    assert refused.exit_code == 1
    assert "Retry 3 runs?" in refused.output
    assert rows.get(dead[0]).status == "dead"
    assert "3 runs are queued again." in ok(run("retry", "--error", "OSError", input="y\n"))
    assert {rows.get(run_id).status for run_id in dead} == {"queued"}


def test_bulk_tells_what_was_only_asked_to_stop(run: Run, rows: Rows) -> None:
    rows.run()
    rows.run("running")
    output = ok(run("cancel", "--task", "send", "--yes"))
    assert output == "1 run is cancelled. 1 running run is asked to stop.\n"


def test_bulk_of_a_status_that_does_not_allow_it_says_what_to_do(run: Run, rows: Rows) -> None:
    rows.run("succeeded")
    output = run("retry", "--status", "succeeded", "--yes").output
    assert output == (
        "Error: Each of these runs succeeded. To do its work again: flask jobs admin again ID\n"
    )


def test_bulk_with_yes_does_not_ask(run: Run, rows: Rows) -> None:
    run_id = rows.run(job_type="gone")
    assert "?" not in ok(run("cancel", "--task", "gone", "--yes"))
    assert rows.get(run_id).status == "cancelled"
    assert "No queued or failed or running runs match." in ok(run("cancel", "--task", "gone"))


def test_bulk_that_finds_nothing_says_which_statuses_it_looked_at(
    run: Run, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="send")(lambda: None)
    rows.run("failed", age=3600)
    rows.run("cancelled")
    rows.run("cancelled")
    rows.run("succeeded")
    rows.run("failed", job_type="other", queue="quick")
    assert ok(run("retry", "--task", "send")) == (
        "No dead runs match. To retry 2 cancelled runs, add --status cancelled. "
        "To retry 1 failed run, add --status failed.\n"
    )
    assert ok(run("retry", "--task", "send", "--status", "dead")) == "No dead runs match.\n"
    assert ok(run("discard", "--task", "send")) == "No dead runs match.\n"
    assert ok(run("retry", "--overdue", "--queue", "quick")) == "No failed runs match.\n"


@pytest.mark.parametrize(
    "args",
    [
        ("retry",),
        ("cancel", "1", "--task", "x"),
        ("list", "--status", "late"),
        ("list", "--older-than", "soon"),
        ("list", "--limit", "0"),
        ("show", "x"),
        ("run", "x", "--payload", "{"),
        ("run", "x", "--payload", "[1]"),
        ("effects", "--done", "a", "--redo", "a"),
        ("effects", "--done", "a", "--json"),
        ("effects", "--redo", "a", "--json"),
        ("cancel", "--error", "", "--yes"),
        ("list", "--error", " "),
        ("--no-such-option",),
    ],
)
def test_bad_usage_exits_2(run: Run, args: tuple[str, ...]) -> None:
    assert run(*args).exit_code == 2


@pytest.mark.parametrize("payload", ["user_id=1", "[1]"])
def test_a_payload_that_is_none_is_told_how_to_write_one(run: Run, payload: str) -> None:
    output = run("run", "x", "--payload", payload).output
    assert "Give an object of arguments, such as '{\"user_id\": 1}'." in output


def test_a_typo_gets_a_suggestion(run: Run) -> None:
    result = run("lst")
    assert result.exit_code == 2
    assert result.output.endswith("Did you mean:\n  flask jobs admin list\n")


def test_a_typo_in_the_first_command_gets_a_suggestion(app: Flask, jobs: CronJobs) -> None:
    result = app.test_cli_runner().invoke(args=["jobs", "tik"])
    assert result.exit_code == 2
    assert result.output.endswith("Did you mean:\n  flask jobs tick\n")


def test_an_id_that_is_none_is_called_an_id(run: Run) -> None:
    assert "'abc' is not a valid id" in run("show", "abc").output


@pytest.mark.parametrize(
    "args",
    [
        *(("show",), ("retry",), ("cancel",), ("discard",), ("again",), ("list", "--before")),
        *(("batches", "--before"), ("effects", "--before"), ("ticks", "--before")),
    ],
)
def test_a_number_that_no_id_can_be_is_bad_usage(run: Run, args: tuple[str, ...]) -> None:
    result = run(*args, "9" * 20)
    assert result.exit_code == 2
    assert f"{'9' * 20} is not in the range" in result.output
    assert run(*args, str(2**63 - 1)).exit_code in (0, 1)


def test_no_color_keeps_colors_away(run: Run, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.run("dead")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in run("doctor", color=True).output
    monkeypatch.setenv("NO_COLOR", "1")
    for args in ((), ("doctor",), ("list",)):
        assert "\x1b" not in run(*args, color=True).output


# run, definitions, pause, resume


def test_run_queues_a_run_with_a_payload(run: Run, rows: Rows, jobs: CronJobs) -> None:
    jobs.task(name="send")(lambda who: None)
    found = data(run("run", "send", "--payload", '{"who": "ada"}', "--json"))
    assert rows.get(found["id"]).payload == {"who": "ada"}
    assert "The next tick" in ok(run("run", "send", "--payload", '{"who": "ada"}'))
    refused = run("run", "send")
    assert refused.exit_code == 1
    assert "--payload" in refused.output
    assert run("run", "sent").output.endswith("Did you mean 'send'?\n")


def test_definitions_show_their_next_three_slots(run: Run, rows: Rows, jobs: CronJobs) -> None:
    jobs.task(name="daily", schedule="@daily")(lambda: None)
    made = rows.definition("daily", schedule="0 7 * * *", timezone="Europe/Berlin")
    rows.definition("broken", schedule="61 * * * *")
    rows.run("succeeded", definition_id=made)
    output = ok(run("definitions"))
    assert output.count(" 07:00") == 3
    assert "last ten: succeeded 1; the last took 2.0 s" in output
    assert "broken: " in output
    found = data(run("definitions", "--json"))["definitions"]
    assert [len(view["next_slots"]) for view in found] == [0, 3]
    assert data(run("definitions", "--limit", "1", "--json"))["after"] == "broken"


def test_definitions_show_no_slot_that_will_not_run(run: Run, rows: Rows) -> None:
    rows.definition("of no task")
    output = ok(run("definitions"))
    assert "declares no task by that name" in output
    assert "next:" not in output


def test_definitions_end_with_the_tasks_that_have_no_schedule(
    run: Run, rows: Rows, jobs: CronJobs
) -> None:
    jobs.task(name="daily", schedule="@daily")(lambda: None)
    jobs.task(name="send")(lambda: None)
    rows.definition("daily")
    rows.definition("hourly", job_type="daily")
    line = "Tasks without a schedule in the code: send\n"
    assert ok(run("definitions")).endswith(line)
    more = ok(run("definitions", "--limit", "1"))
    assert more.endswith("More: flask jobs admin definitions --limit 1 --after daily\n")
    assert line not in more


def test_pause_and_resume(run: Run, rows: Rows) -> None:
    rows.definition("daily")
    assert "resume daily" in ok(run("pause", "daily"))
    assert "paused" in ok(run("definitions"))
    assert ok(run("resume", "daily")) == "Resumed daily.\n"
    assert ok(run("resume", "daily")) == "Not paused: daily.\n"
    assert run("pause", "dayly").exit_code == 1


# effects, prune, init


def test_effects_are_listed_and_settled(run: Run, rows: Rows) -> None:
    assert "No effect is being done" in ok(run("effects"))
    rows.effect("charge:1", state="in_doubt")
    rows.effect("charge:2", state="in_doubt")
    rows.effect("charge:3", state="done", done_at=ago(1))
    output = ok(run("effects"))
    assert "charge:1" in output
    assert "charge:3" not in output
    assert "charge:3" in ok(run("effects", "--all"))
    ok(run("effects", "--done", "charge:1"))
    ok(run("effects", "--redo", "charge:2"))
    assert data(run("effects", "--json")) == {"effects": [], "before": None}
    assert run("effects", "--done", "charge:1").exit_code == 1


def test_prune_counts_then_deletes(run: Run, rows: Rows) -> None:
    rows.run("succeeded", age=15 * 86400)
    assert ok(run("prune", "--dry-run")) == "Would prune 1 run.\n"
    assert data(run("prune", "--json")) == {"runs": 1, "dry_run": False}
    assert ok(run("prune")) == "Pruned 0 runs.\n"


def test_init_creates_the_tables_once(app: Flask, db: SQLAlchemy) -> None:
    CronJobs(app)
    runner = app.test_cli_runner()
    missing = runner.invoke(args=["jobs", "admin"])
    assert missing.exit_code == 1
    assert missing.output.startswith(
        "Error: The job tables do not exist. Run: flask jobs admin init (in the database "
    )
    created = json.loads(runner.invoke(args=["jobs", "admin", "init", "--json"]).output)["created"]
    assert sorted(created) == [
        "job_batches",
        "job_definitions",
        "job_effects",
        "job_failures",
        "job_outputs",
        "job_pauses",
        "job_runs",
        "job_ticks",
    ]
    assert runner.invoke(args=["jobs", "admin", "init"]).output == "All tables exist.\n"
    with app.app_context():
        assert state_of().engine.dialect.name in ("sqlite", "postgresql")


def test_init_says_that_it_set_a_file_of_sqlite_to_wal(app: Flask, jobs: CronJobs) -> None:
    """The tables may be there: a migration has made them, and leaves the journal mode."""
    output = ok(app.test_cli_runner().invoke(args=["jobs", "admin", "init"]))
    with app.app_context():
        on_sqlite = state_of().engine.dialect.name == "sqlite"
    said = "Set SQLite's journal mode to WAL.\n" if on_sqlite else ""
    assert output == f"All tables exist.\n{said}"


def test_every_command_has_help(run: Run) -> None:
    listed = ok(run("--help"))
    names = "list show retry cancel run definitions pause resume effects prune init crontab doctor"
    for name in names.split(" "):
        assert f"\n  {name} " in listed
        assert "Usage:" in ok(run(name, "--help"))


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


@pytest.mark.parametrize("name", ["app.py", "my app.py"])
@pytest.mark.slow
def test_the_crontab_line_works_in_the_environment_of_cron(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a folder of 100%"
    folder.mkdir()
    (folder / name).write_text(APP)
    flask = [sys.executable, "-m", "flask", "--app", name]

    def admin(*args: str) -> str:
        command = [*flask, "jobs", "admin", *args]
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True
        ).stdout

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


def test_crontab_takes_a_log_and_prints_json(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "deep" / "jobs.log"
    result = run("crontab", "--log", str(log))
    assert f">> {shlex.quote(str(log))} 2>&1" in ok(result)
    assert "mkdir -p" in result.output
    assert set(data(run("crontab", "--json"))) == {"crontab", "service", "timer"}


@pytest.fixture
def not_root(run: Run) -> Iterator[None]:
    """Tests may run as root, who may write everywhere."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield
    os.seteuid(was)


@pytest.mark.usefixtures("not_root")
def test_crontab_warns_of_a_log_that_cannot_be_written(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    result = run("crontab")
    assert "This user may not write the log /cronjobs.log. If cron's may not" in result.stderr
    assert "--log FILE" in result.stderr
    assert result.stdout.count("\n") == 1
    assert "may not write" not in run("crontab", "--log", "/dev/null").stderr


@pytest.mark.usefixtures("not_root")
def test_crontab_does_not_choose_an_instance_folder_that_cannot_be_written(
    run: Run, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.instance_path = "/"
    monkeypatch.chdir("/tmp")
    result = run("crontab")
    assert ">> /tmp/cronjobs.log 2>&1" in result.stdout
    assert "may not write" not in result.stderr


@pytest.mark.parametrize("args", [(), ("--systemd",)])
def test_crontab_warns_of_a_database_url_from_a_variable_of_this_shell(
    run: Run, app: Flask, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    assert "seems to come" not in ok(run("crontab", *args))
    _, _, address = app.config["SQLALCHEMY_DATABASE_URI"].partition("://")
    monkeypatch.setenv("SHOP_DATABASE", f"postgres://{address}")
    result = run("crontab", *args)
    assert "SHOP_DATABASE" in ok(result)
    assert "SHOP_DATABASE" not in result.stdout


def test_crontab_does_not_warn_of_a_variable_that_flask_finds_under_cron_as_well(
    run: Run, app: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = app.config["SQLALCHEMY_DATABASE_URI"]
    (tmp_path / ".env").write_text(f"SHOP_DATABASE={url}\n")
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    monkeypatch.setenv("SHOP_DATABASE", url)
    monkeypatch.setattr(crontab, "find_spec", lambda name: None)
    assert "SHOP_DATABASE" in ok(run("crontab"))
    monkeypatch.setattr(crontab, "find_spec", lambda name: name)
    assert "SHOP_DATABASE" not in ok(run("crontab"))


def test_systemd_units_escape_what_systemd_would_read() -> None:
    wake = Wake(
        folder=Path("/srv/100% app"),
        command=("/venv/bin/flask", "jobs", "tick", "$x y"),
        app="my app.py",
        log=Path("/var/log/jobs.log"),
        grace=20.0,
    )
    assert "WorkingDirectory=/srv/100%% app\n" in wake.service
    assert 'ExecStart=/venv/bin/flask jobs tick "$$x y"\n' in wake.service
    assert 'Environment="FLASK_APP=my app.py"\n' in wake.service
    assert "TimeoutStopSec=50\n" in wake.service
    assert "OnCalendar=*-*-* *:*:00\n" in wake.timer
    assert wake.line.count("\\%") == 1


def test_systemd_is_printed_with_what_to_do(run: Run) -> None:
    output = ok(run("crontab", "--systemd"))
    for part in ("[Service]", "[Timer]", "systemctl enable --now cronjobs.timer"):
        assert part in output
    assert os.sep in output


def test_ctrl_c_says_how_many_runs_are_done(
    run: Run, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        rows.run("dead")
    retry, asked = Operator.retry, []

    def interrupted(self: Operator, ids: Any, *rest: Any) -> Any:
        asked.append(ids)
        if len(asked) > 1:
            raise KeyboardInterrupt
        return retry(self, ids, *rest)

    monkeypatch.setattr(Operator, "retry", interrupted)
    monkeypatch.setattr("flask_cronjobs.jobs.runs.actions.CHUNK", 2)
    result = run("retry", "--status", "dead", "--yes")
    assert result.exit_code == 1
    assert "Stopped: at least 2 of 3 runs are done." in result.output


def test_ctrl_c_says_how_many_runs_are_pruned(
    run: Run, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        rows.run("succeeded", age=100 * 86400)

    def prune(*_: Any) -> Iterator[int]:
        yield 2
        raise KeyboardInterrupt

    monkeypatch.setattr("flask_cronjobs.jobs.pruning.prune", prune)
    result = run("prune")
    assert result.exit_code == 1
    assert "Stopped: at least 2 of 3 runs are done." in result.output
