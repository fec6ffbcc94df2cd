"""``flask jobs tick``: silence, lines, exit codes and options; and what an idle tick costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text, update

from flask_cronjobs import CronJobs, TablesMissing
from flask_cronjobs.db import connection
from flask_cronjobs.engine import tick as tick_module
from flask_cronjobs.jobs import pruning
from flask_cronjobs.jobs.state import state_of
from flask_cronjobs.models import JobDefinition, JobEffect, JobRun, JobTick
from flask_cronjobs.types import TickReport
from tests.marks import on_postgresql
from tests.rows import Rows, ago

Tick = Callable[..., Result]

ROOT = Path(__file__).parents[2]
TALKATIVE = """
import logging
import os
import subprocess
import sys

from flask import Flask
from flask_cronjobs import CronJobs
from flask_sqlalchemy import SQLAlchemy

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["URL"]
SQLAlchemy(app)
jobs = CronJobs(app)
standard = sys.stdout
logging.basicConfig(stream=standard, level=logging.INFO)


@jobs.task
def talk():
    print("printed")
    standard.write("buffered")
    subprocess.run(["echo", "by a command"], check=True)
    logging.info("logged")
"""


@pytest.fixture
def tick(app: Flask) -> Tick:
    """Run ``flask jobs tick`` with the given arguments, in this process."""

    def tick(*args: str) -> Result:
        return app.test_cli_runner().invoke(args=["jobs", "tick", *args])

    return tick


@pytest.fixture
def hello(jobs: CronJobs) -> Any:
    @jobs.task
    def hello(name: str = "you") -> None: ...

    return hello


def enqueue(app: Flask, task: Any, number: int = 1, **options: Any) -> None:
    with app.app_context():
        task.using(commit=True, **options).enqueue_many([{}] * number)


def statuses(app: Flask, db: SQLAlchemy) -> list[str]:
    with app.app_context():
        return list(db.session.scalars(select(JobRun.status).order_by(JobRun.id)))


class TestOutput:
    def test_tick_with_nothing_due_is_silent(self, jobs: CronJobs, tick: Tick) -> None:
        jobs.task(name="daily", schedule="@yearly")(lambda: None)
        for _ in range(2):
            done = tick()
            assert (done.exit_code, done.output, done.stderr) == (0, "", "")

    def test_one_line_a_run_and_a_summary(self, app: Flask, hello: Any, tick: Tick) -> None:
        enqueue(app, hello, 2)
        done = tick()
        assert done.exit_code == 0
        first, second, summary = done.output.splitlines()
        assert first.startswith("succeeded  hello  run 1  attempt 1  ")
        assert second.startswith("succeeded  hello  run 2  attempt 1  ")
        assert summary.startswith("tick: 2 succeeded in ")

    def test_failed_jobs_are_the_table_s_business(
        self, app: Flask, jobs: CronJobs, tick: Tick
    ) -> None:
        @jobs.task(retry=False)
        def broken() -> None:
            raise ValueError("first line\nsecond line")

        enqueue(app, broken)
        done = tick()
        assert done.exit_code == 0
        assert "ValueError: first line\n" in done.stdout
        assert "second line" not in done.stdout
        assert "1 dead" in done.stdout

    def test_json_is_one_object(self, app: Flask, hello: Any, tick: Tick) -> None:
        enqueue(app, hello)
        done = tick("--json")
        assert done.exit_code == 0
        told = json.loads(done.stdout)
        assert (told["tick"]["succeeded"], told["slots"]) == (1, [])
        (run,) = told["runs"]
        assert (run["task"], run["outcome"], run["attempt"]) == ("hello", "succeeded", 1)

    def test_json_with_nothing_due_is_an_object_too(self, jobs: CronJobs, tick: Tick) -> None:
        told = json.loads(tick("--json").stdout)
        assert (told["runs"], told["tick"]["succeeded"]) == ([], 0)

    @pytest.mark.parametrize("workers", ["1", "2"])
    @pytest.mark.slow
    def test_json_stays_one_object_whatever_handlers_print(
        self, tmp_path: Path, database_url: str, workers: str
    ) -> None:
        (tmp_path / "app.py").write_text(TALKATIVE)

        def flask(*args: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "flask", "jobs", *args]
            env = {**os.environ, "URL": database_url, "PYTHONPATH": str(ROOT)}
            return subprocess.run(
                command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
            )

        flask("admin", "init")
        flask("admin", "run", "talk")
        done = flask("tick", "--json", "--workers", workers)
        assert json.loads(done.stdout)["tick"]["succeeded"] == 1
        for said in ("printed", "buffered", "by a command", "logged"):
            assert said in done.stderr

    def test_skipped_slots_are_lines(
        self, app: Flask, jobs: CronJobs, db: SQLAlchemy, tick: Tick
    ) -> None:
        jobs.task(name="minutely", schedule="* * * * *")(lambda: None)
        tick()
        set_back(app, db, timedelta(minutes=5))
        done = tick()
        assert "skipped    minutely  " in done.stdout
        assert done.stderr == "", "what is printed is not logged there as well"
        assert "missed: ticks ran, but none recorded it in time" in done.stdout
        assert "succeeded  minutely" in done.stdout


class TestErrors:
    def test_missing_tables_are_one_line(self, app: Flask, tick: Tick) -> None:
        CronJobs(app)
        done = tick()
        assert done.exit_code == 1
        (line,) = done.output.splitlines()
        assert line.startswith("Error: The job tables do not exist. Run: flask jobs admin init ")

    def test_missing_tables_name_the_database_that_lacks_them(self, app: Flask, tick: Tick) -> None:
        CronJobs(app)
        with app.app_context():
            database = state_of().engine.url.database
        assert f"{database}, if it is the right one)" in tick().output

    def test_missing_tables_are_an_error_of_ours_in_python(self, app: Flask) -> None:
        jobs = CronJobs(app)
        with app.app_context(), pytest.raises(TablesMissing, match="flask jobs admin init"):
            jobs.tick()

    def test_tables_of_another_version_are_one_line(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
    ) -> None:
        with app.app_context():
            db.session.execute(text("ALTER TABLE job_ticks DROP COLUMN seen_at"))
            db.session.commit()
        done = tick()
        assert done.exit_code == 1
        assert "tables are of another version" in done.output
        assert len(done.output.splitlines()) == 1

    def test_database_that_is_not_there_is_one_line(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "PATIENCE", 0.1)
        app, db = Flask("x"), SQLAlchemy()
        app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path}/none/x.sqlite"
        db.init_app(app)
        CronJobs(app)
        done = app.test_cli_runner().invoke(args=["jobs", "tick"])
        assert done.exit_code == 1
        assert done.output.startswith("Error: The database cannot be used: ")
        assert len(done.output.splitlines()) == 1

    @pytest.mark.parametrize(
        "args", [["--workers", "0"], ["--budget", "none"], ["--max-runs", "0"], ["--unknown"]]
    )
    def test_wrong_usage_is_2(self, jobs: CronJobs, tick: Tick, args: list[str]) -> None:
        assert tick(*args).exit_code == 2


class TestOptions:
    def test_only_the_queues_named(
        self, app: Flask, db: SQLAlchemy, hello: Any, tick: Tick
    ) -> None:
        for queue in ("mail", "other", "default"):
            enqueue(app, hello, queue=queue)
        assert tick("--queue", "mail", "--queue", "default").exit_code == 0
        assert statuses(app, db) == ["succeeded", "queued", "succeeded"]

    def test_no_more_than_max_runs(
        self, app: Flask, db: SQLAlchemy, hello: Any, tick: Tick
    ) -> None:
        enqueue(app, hello, 5)
        tick("--max-runs", "3")
        assert statuses(app, db) == ["succeeded"] * 3 + ["queued"] * 2

    def test_nothing_is_claimed_after_the_budget(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, tick: Tick
    ) -> None:
        @jobs.task
        def slow() -> None:
            time.sleep(2.5)

        enqueue(app, slow, 3)
        done = tick("--budget", "2")
        assert done.exit_code == 0
        assert statuses(app, db) == ["succeeded", "queued", "queued"]

    @pytest.mark.parametrize("option", ["--budget", "--jitter"])
    def test_a_number_of_seconds_is_finite(self, jobs: CronJobs, tick: Tick, option: str) -> None:
        for number in ("nan", "inf"):
            done = tick(option, number)
            assert done.exit_code == 2
            assert f"Invalid value for '{option}'" in done.output

    @pytest.mark.parametrize("budget", [float("nan"), float("inf"), -float("inf")])
    def test_python_refuses_a_budget_that_is_not_finite(
        self, app: Flask, jobs: CronJobs, budget: float
    ) -> None:
        with app.app_context(), pytest.raises(ValueError, match="Give seconds, or None"):
            jobs.tick(budget=budget)

    def test_dry_run_prints_what_is_due_and_changes_nothing(
        self, app: Flask, db: SQLAlchemy, hello: Any, tick: Tick
    ) -> None:
        enqueue(app, hello)
        done = tick("--dry-run")
        assert done.exit_code == 0
        assert "hello" in done.stdout
        assert statuses(app, db) == ["queued"]
        with app.app_context():
            assert db.session.scalars(select(JobTick)).all() == []

    def test_dry_run_says_that_nothing_is_due_and_what_is_next(
        self, app: Flask, jobs: CronJobs, hello: Any, tick: Tick
    ) -> None:
        assert tick("--dry-run").output == "nothing is due; nothing is scheduled\n"
        jobs.task(name="yearly", schedule="0 7 1 1 *")(lambda: None)
        assert "; a tick records the schedules" in tick("--dry-run").output
        tick()
        assert "nothing is due; next: " in tick("--dry-run").output
        assert "-01-01 07:00:00 UTC (in " in tick("--dry-run").output
        enqueue(app, hello, delay=90)
        assert "(in 1 min)" in tick("--dry-run").output
        enqueue(app, hello)
        assert tick("--dry-run").output == "would run      hello  1 run  queue default\n"

    def test_dry_run_tells_only_of_definitions_that_the_tick_would_touch(
        self, app: Flask, db: SQLAlchemy, hello: Any, tick: Tick
    ) -> None:
        rows = Rows(app, db)
        rows.definition("gone", next_run_at=ago(60))
        rows.definition("stranger", next_run_at=ago(60), origin="database")
        rows.definition("customer", next_run_at=ago(60), origin="database", job_type="hello")
        done = tick("--dry-run")
        assert "would enqueue  customer" in done.stdout
        assert len(done.stdout.splitlines()) == 1

    def test_python_takes_the_same(self, app: Flask, jobs: CronJobs, hello: Any) -> None:
        enqueue(app, hello, 3, queue="mail")
        enqueue(app, hello)
        with app.app_context():
            assert jobs.tick(queues=["mail"], max_runs=2).succeeded == 2
            report = jobs.tick(budget=10)
        assert (report.succeeded, report.attempts) == (2, 2)

    def test_python_may_claim_nothing_in_any_thread(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, hello: Any
    ) -> None:
        enqueue(app, hello)

        def tick() -> TickReport:
            with app.app_context():
                return jobs.tick(max_runs=0)

        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(tick).result().attempts == 0
        assert statuses(app, db) == ["queued"]

    def test_python_is_told_of_values_that_cannot_be_meant(
        self, app: Flask, jobs: CronJobs
    ) -> None:
        with app.app_context():
            with pytest.raises(TypeError, match=r"Give a list of names: queues=\['mail'\]"):
                jobs.tick(queues="mail")
            with pytest.raises(ValueError, match=r"max_runs is -1\. Give 0 or more"):
                jobs.tick(max_runs=-1)


class TestCost:
    def test_idle_tick_sends_at_most_seven_statements(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs
    ) -> None:
        for number in range(20):
            jobs.task(name=f"daily {number}", schedule="@yearly")(lambda: None)
        sent: list[str] = []
        with app.app_context():
            jobs.tick()

            @event.listens_for(db.engine, "before_cursor_execute")
            def count(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
                sent.append(" ".join(statement.split())[:60])

            jobs.tick()
        work = [statement for statement in sent if not statement.startswith("PRAGMA")]
        assert len(work) <= 7, "\n".join(work)

    def test_tick_leaves_no_connection_open(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, hello: Any
    ) -> None:
        enqueue(app, hello, 3)
        with app.app_context():
            opened: list[object] = []
            closed: list[object] = []
            event.listen(db.engine, "connect", lambda raw, record: opened.append(raw))
            for name in ("close", "close_detached"):
                event.listen(db.engine, name, lambda raw, *record: closed.append(raw))
            jobs.tick()
            db.session.remove()
            db.engine.dispose()
        assert opened
        assert [raw for raw in opened if raw not in closed] == []


class TestRetention:
    def test_old_runs_go_by_themselves(
        self, app: Flask, db: SQLAlchemy, hello: Any, jobs: CronJobs,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        enqueue(app, hello, 2)
        with app.app_context():
            jobs.tick()
            old = datetime.now(timezone.utc) - timedelta(days=15)
            db.session.execute(update(JobRun).where(JobRun.id == 1).values(finished_at=old))
            db.session.commit()
            monkeypatch.setattr(tick_module, "PRUNE_EVERY", 1)
            assert jobs.tick().pruned == 1
            assert db.session.scalars(select(JobRun.id)).all() == [2]

    @on_postgresql
    def test_run_that_a_table_of_the_app_refers_to_fails_no_tick(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        Rows(app, db).run("succeeded", finished_at=ago(days=99))
        monkeypatch.setattr(tick_module, "PRUNE_EVERY", 1)
        with app.app_context():
            db.session.execute(text("CREATE TABLE mine (run_id bigint REFERENCES job_runs)"))
            db.session.execute(text("INSERT INTO mine SELECT id FROM job_runs"))
            db.session.commit()
            assert jobs.tick().pruned == 0
        assert "needs ON DELETE CASCADE or SET NULL" in caplog.text

    def test_one_tick_of_every_twenty_prunes(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs
    ) -> None:
        """If it is soon enough for what is past its retention by a minute."""
        rows = Rows(app, db)
        pruned: list[int] = []
        with app.app_context():
            for _ in range(40):
                rows.run("succeeded", finished_at=ago(days=14, minutes=1))
                pruned.append(jobs.tick().pruned)
        assert pruned == [*[0] * 19, 20] * 2

    def test_next_tick_prunes_what_one_has_left(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So one host with a tick a minute keeps up with what ends, whatever kind it is."""
        rows = Rows(app, db)
        monkeypatch.setattr(pruning, "CHUNK", 2)
        monkeypatch.setattr(tick_module, "PRUNE_BUDGET", -1.0)
        for each in range(3):
            rows.run("succeeded", finished_at=ago(days=14, minutes=10))
            rows.effect(str(each), state="done", done_at=ago(days=91))
        with app.app_context():
            assert [jobs.tick().pruned for _ in range(3)] == [2, 1, 0]
            assert db.session.scalars(select(JobEffect.id)).all() == []
            rows.effect("late", state="done", done_at=ago(days=91))
            jobs.tick()
            assert db.session.scalars(select(JobEffect.id)).all() == []

    def test_tick_that_is_told_to_stop_prunes_no_further(
        self, app: Flask, db: SQLAlchemy, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows, state = Rows(app, db), state_of(app)
        monkeypatch.setattr(pruning, "CHUNK", 2)
        for _ in range(5):
            rows.run("succeeded", finished_at=ago(days=15))
        with app.app_context(), state.bookkeeping() as books:
            opened = tick_module.begin(books)
            assert tick_module.prune(state, books, opened, lambda: True) == 2


def set_back(app: Flask, db: SQLAlchemy, by: timedelta) -> None:
    """Set all watermarks back, so that slots are due."""
    with app.app_context():
        for definition in db.session.scalars(select(JobDefinition)):
            assert definition.next_run_at is not None
            definition.next_run_at -= by
        db.session.commit()


def test_a_queue_that_no_task_has_is_told_with_a_suggestion(
    app: Flask, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.task(name="send", queue="mail")(lambda: None)
    jobs.task(name="sum")(lambda: None)
    with app.app_context():
        jobs.get("sum").using(queue="vip", commit=True).enqueue()
    invoke = app.test_cli_runner().invoke
    for queues in (["mail", "default"], ["defaults"], ["vip"]):
        options = [part for queue in queues for part in ("--queue", queue)]
        done = invoke(args=["jobs", "tick", *options])
        assert done.exit_code == 0
        assert ("succeeded" in done.output) == (queues == ["vip"])
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("No task of this app's code has the queue 'defaults'. Did you mean ")
    assert "'default'?" in said
    assert "Only runs that were enqueued with using(queue='defaults') are claimed." in said
