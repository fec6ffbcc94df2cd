"""``flask jobs tick``: silence, lines, exit codes, options, and the cost of an idle tick."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from click.testing import Result
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select, text

from flask_cronjobs import CronJobs, TablesMissing
from flask_cronjobs.core import tick as tick_module
from flask_cronjobs.core import ticks
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.db import connection
from flask_cronjobs.models import JobDefinition, JobEffect, JobRun
from flask_cronjobs.types import TickReport
from tests.marks import on_postgresql
from tests.rows import Rows, ago


class Tick:
    """Runs ``flask jobs tick`` in this process; its app has a task that does nothing."""

    def __init__(self, app: Flask, db: SQLAlchemy, jobs: CronJobs) -> None:
        self.app, self.db, self.jobs = app, db, jobs
        self.hello: Any = jobs.task(name="hello")(lambda name="you": None)

    def __call__(self, *args: str) -> Result:
        return self.app.test_cli_runner().invoke(args=["jobs", "tick", *args])

    def enqueue(self, number: int = 1, task: Any = None, **options: Any) -> None:
        with self.app.app_context():
            (task or self.hello).using(commit=True, **options).enqueue_many([{}] * number)

    def statuses(self) -> list[str]:
        with self.app.app_context():
            return list(self.db.session.scalars(select(JobRun.status).order_by(JobRun.id)))


@pytest.fixture
def tick(app: Flask, db: SQLAlchemy, jobs: CronJobs) -> Tick:
    """Runs ``flask jobs tick`` in this process."""
    return Tick(app, db, jobs)


class TestOutput:
    def test_tick_with_nothing_due_is_silent(self, tick: Tick) -> None:
        tick.jobs.task(name="daily", schedule="@yearly")(lambda: None)
        for _ in range(2):
            result = tick()
            assert (result.exit_code, result.output, result.stderr) == (0, "", "")
        report = json.loads(tick("--json").stdout)
        assert (report["runs"], report["tick"]["succeeded"]) == ([], 0)

    def test_one_line_a_run_and_a_summary(self, tick: Tick) -> None:
        """The lines are those of failed runs as well."""

        @tick.jobs.task(retry=False)
        def broken() -> None:
            raise ValueError("first line\nsecond line")

        tick.enqueue()
        tick.enqueue(task=broken)
        result = tick()
        assert result.exit_code == 0
        first, second, summary = result.stdout.splitlines()
        assert first.startswith("succeeded  hello  run 1  attempt 1  ")
        assert second.startswith("dead       broken  run 2  attempt 1  ")
        assert second.endswith(" ms  ValueError: first line")
        assert summary.startswith("tick: 1 succeeded, 1 dead in ")

    def test_json_is_one_object(self, tick: Tick) -> None:
        tick.enqueue()
        result = tick("--json")
        assert result.exit_code == 0
        report = json.loads(result.stdout)
        assert (report["tick"]["succeeded"], report["slots"]) == (1, [])
        (run,) = report["runs"]
        assert (run["task"], run["outcome"], run["attempt"]) == ("hello", "succeeded", 1)

    def test_skipped_slots_are_lines(self, tick: Tick) -> None:
        tick.jobs.task(name="minutely", schedule="* * * * *")(lambda: None)
        tick()
        with tick.app.app_context():
            definition = tick.db.session.scalars(select(JobDefinition)).one()
            assert definition.next_run_at is not None
            definition.next_run_at -= timedelta(minutes=5)
            tick.db.session.commit()
        result = tick()
        assert "skipped    minutely  " in result.stdout
        assert result.stderr == "", "what is printed is not logged there as well"
        assert "missed: ticks ran, but none recorded it in time" in result.stdout
        assert "succeeded  minutely" in result.stdout


class TestErrors:
    def test_missing_tables_are_one_line_that_names_the_database(self, app: Flask) -> None:
        jobs = CronJobs(app)
        result = app.test_cli_runner().invoke(args=["jobs", "tick"])
        assert result.exit_code == 1
        (line,) = result.output.splitlines()
        assert line.startswith("Error: Job tables are missing: ")
        assert ". Run: flask jobs admin init (Is this the right database? " in line
        with app.app_context():
            assert f"{state_of().engine.url.database})" in line
            with pytest.raises(TablesMissing, match="flask jobs admin init"):
                jobs.tick()

    def test_database_that_is_not_there_is_one_line(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "RETRY_SECONDS", 0.1)
        app, db = Flask("x"), SQLAlchemy()
        app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path}/none/x.sqlite"
        db.init_app(app)
        CronJobs(app)
        result = app.test_cli_runner().invoke(args=["jobs", "tick"])
        assert result.exit_code == 1
        assert result.output.startswith("Error: The database cannot be used: ")
        assert len(result.output.splitlines()) == 1

    @pytest.mark.parametrize(
        "args",
        ["--workers 0", "--budget none", "--max-runs 0", "--unknown", "--budget nan",
         "--budget inf", "--jitter nan", "--jitter inf"],
    )  # fmt: skip
    def test_wrong_usage_is_2(self, tick: Tick, args: str) -> None:
        result = tick(*args.split())
        assert result.exit_code == 2
        assert f"'{args.split()[0]}'" in result.output or "No such option" in result.output


class TestOptions:
    def test_only_the_queues_named_and_no_more_than_max_runs(self, tick: Tick) -> None:
        for queue in ("mail", "other", "default", "mail"):
            tick.enqueue(queue=queue)
        refused = tick("--queue", "mail,default")
        assert refused.exit_code == 2
        assert "for each queue: --queue mail --queue default" in refused.stderr
        assert tick("--queue", "mail", "--queue", "default", "--max-runs", "2").exit_code == 0
        assert tick.statuses() == ["succeeded", "queued", "succeeded", "queued"]
        assert tick("--queue", "mail", "--queue", "default").exit_code == 0
        assert tick.statuses() == ["succeeded", "queued", "succeeded", "succeeded"]

    @pytest.mark.parametrize(
        ("queue", "says"),
        [
            ("", "--queue is '', and no queue can have that name."),
            ("default,", "for each queue: --queue default\n"),
        ],
    )
    @pytest.mark.parametrize("how", [(), ("--dry-run",)])
    def test_queue_that_cannot_be_meant_is_refused(
        self, tick: Tick, queue: str, says: str, how: tuple[str, ...]
    ) -> None:
        refused = tick(*how, "--queue", queue)
        assert refused.exit_code == 2
        assert says in refused.stderr

    def test_nothing_is_claimed_after_the_budget(self, tick: Tick) -> None:
        tick.enqueue(3, tick.jobs.task(name="slow")(lambda: time.sleep(2.5)))
        assert tick("--budget", "2").exit_code == 0
        assert tick.statuses() == ["succeeded", "queued", "queued"]

    def test_dry_run_prints_what_is_due_or_next_and_changes_nothing(self, tick: Tick) -> None:
        def due() -> str:
            result = tick("--dry-run")
            assert result.exit_code == 0
            return result.output

        assert due() == "Nothing is due; nothing is scheduled\n"
        tick.jobs.task(name="yearly", schedule="0 7 1 1 *")(lambda: None)
        assert "; the next tick records the schedules" in due()
        tick()
        with tick.app.app_context():
            tick.jobs.pause("yearly")
        assert due() == "Nothing is due; nothing is scheduled\n"
        with tick.app.app_context():
            tick.jobs.resume("yearly")
        assert "Nothing is due; next: " in due()
        assert "-01-01 07:00:00 UTC (in " in due()
        tick.enqueue(delay=90)
        assert "(in 1 min)" in due()
        tick.enqueue()
        assert due() == "1 run due\n"
        assert tick.statuses() == ["queued", "queued"]
        report = json.loads(tick("--dry-run", "--json").stdout)
        assert report == {"slots": [], "runs": {"value": 1, "capped": False}}

    def test_dry_run_prints_only_definitions_that_the_tick_would_touch(
        self, tick: Tick, rows: Rows
    ) -> None:
        rows.definition("gone", next_run_at=ago(60))
        rows.definition("stranger", next_run_at=ago(60), origin="database")
        rows.definition("customer", next_run_at=ago(60), origin="database", job_type="hello")
        (line,) = tick("--dry-run").stdout.splitlines()
        assert line.startswith("customer is due: the slot of ")

    def test_dry_run_prints_times_in_the_zone_of_the_configuration(
        self, tick: Tick, rows: Rows
    ) -> None:
        object.__setattr__(state_of(tick.app).settings, "timezone", "Asia/Tokyo")
        tick.jobs.task(name="yearly", schedule="0 7 1 1 *", timezone="Asia/Tokyo")(lambda: None)
        tick()
        assert "-01-01 07:00:00 JST (in " in tick("--dry-run").output
        slot = ago(3600).replace(second=0, microsecond=0)
        rows.definition("customer", next_run_at=slot, origin="database", job_type="hello")
        due = f"customer is due: the slot of {slot + timedelta(hours=9):%Y-%m-%d %H:%M} JST\n"
        assert tick("--dry-run").output == due

    def test_python_may_claim_nothing_in_any_thread(self, tick: Tick) -> None:
        def claim() -> TickReport:
            with tick.app.app_context():
                return tick.jobs.tick(max_runs=0)

        tick.enqueue()
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(claim).result().attempts == 0
        assert tick.statuses() == ["queued"]

    @pytest.mark.parametrize(
        ("option", "error", "says"),
        [
            ({"queues": "mail"}, TypeError, r"Give a list of names: queues=\['mail'\]"),
            ({"max_runs": -1}, ValueError, r"max_runs is -1\. Give a whole number, 0 or more"),
            ({"max_runs": 1.5}, ValueError, r"max_runs is 1\.5\. Give a whole number"),
            ({"budget": float("nan")}, ValueError, "Give seconds, or None"),
            ({"budget": -float("inf")}, ValueError, "Give seconds, or None"),
        ],
    )
    def test_values_from_python_that_cannot_be_meant_are_refused(
        self, context: None, jobs: CronJobs, option: Any, error: type[Exception], says: str
    ) -> None:
        with pytest.raises(error, match=says):
            jobs.tick(**option)


class TestCost:
    def test_idle_tick_sends_four_statements(self, tick: Tick) -> None:
        for number in range(20):
            tick.jobs.task(name=f"daily {number}", schedule="@yearly")(lambda: None)
        log: list[str] = []
        with tick.app.app_context():
            tick.jobs.tick()

            @event.listens_for(tick.db.engine, "before_cursor_execute")
            def count(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
                log.append(" ".join(statement.split())[:60])

            tick.jobs.tick()
        work = [statement for statement in log if not statement.startswith("PRAGMA")]
        assert len(work) == 4, "\n".join(work)


class TestRetention:
    @on_postgresql
    def test_run_that_a_table_of_the_app_refers_to_fails_no_tick(
        self, tick: Tick, rows: Rows, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        rows.run("succeeded", finished_at=ago(days=99))
        monkeypatch.setattr(tick_module, "PRUNE_EVERY", 1)
        with tick.app.app_context():
            session = tick.db.session
            session.execute(text("CREATE TABLE mine (run_id bigint REFERENCES job_runs)"))
            session.execute(text("INSERT INTO mine SELECT id FROM job_runs"))
            session.commit()
            assert tick.jobs.tick().pruned == 0
        assert "needs ON DELETE CASCADE or SET NULL" in caplog.text

    def test_first_tick_of_an_hour_prunes_and_one_of_every_nineteen(
        self, tick: Tick, rows: Rows
    ) -> None:
        pruned: list[int] = []
        with tick.app.app_context():
            state = state_of(tick.app)
            for number in range(1, 39):
                rows.run("succeeded", finished_at=ago(days=14, minutes=1))
                pruned.append(tick.jobs.tick().pruned)
                if number == 3:  # This simulates hours that have passed.
                    with state.bookkeeping() as books:
                        d = books.dialect
                        moment = d.typed(":then", "timestamptz")
                        earlier = text(f"UPDATE job_ticks SET started_at = {moment}")
                        books.rows(earlier, {"then": d.instant(ago(hours=4))})
        assert pruned == [0, 0, 0, 4, *[0] * 14, 15, *[0] * 18, 19]

    def test_next_tick_prunes_what_one_has_left(
        self, tick: Tick, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Like this, one host with a tick a minute keeps up with all runs and effects."""
        monkeypatch.setattr(ticks, "DELETED_AT_ONCE", 2)
        monkeypatch.setattr(tick_module, "PRUNE_SECONDS", -1.0)
        for number in range(5):
            rows.run("succeeded", finished_at=ago(days=14, minutes=10))
            rows.effect(str(number), state="done", done_at=ago(days=91))
        with tick.app.app_context():
            monkeypatch.setattr(tick_module, "PRUNE_EVERY", 1)
            pruned = [tick.jobs.tick().pruned]
            monkeypatch.setattr(tick_module, "PRUNE_EVERY", 1000)
            assert [*pruned, *(tick.jobs.tick().pruned for _ in range(3))] == [2, 2, 1, 0]
            assert tick.db.session.scalars(select(JobEffect.id)).all() == []


def test_a_queue_that_no_task_has_is_reported_with_a_suggestion(
    app: Flask, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.task(name="send", queue="mail")(lambda: None)
    jobs.task(name="sum")(lambda: None)
    with app.app_context():
        jobs.get("sum").using(queue="vip", commit=True).enqueue()
    invoke = app.test_cli_runner().invoke
    for queues in (["mail", "default"], ["defaults"], ["vip"]):
        options = [part for queue in queues for part in ("--queue", queue)]
        result = invoke(args=["jobs", "tick", *options])
        assert result.exit_code == 0
        assert ("succeeded" in result.output) == (queues == ["vip"])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("No task in this app's code uses the queue 'defaults'. Did you mean ")
    assert "'default'?" in line
    assert "Only runs that were enqueued with using(queue='defaults') are claimed from it." in line
