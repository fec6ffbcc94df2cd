"""A monitor is pinged about a definition's runs, and delays none of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, update

from flask_cronjobs import CronJobs, DatabaseTrouble, Discard, Retry, TablesMissing, current_run
from flask_cronjobs.core import leases, ticks
from flask_cronjobs.core import resident as resident_module
from flask_cronjobs.core.app_state import State
from flask_cronjobs.core.definitions import find
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.features.pings import http, run_pings
from flask_cronjobs.features.pings.http import ping
from flask_cronjobs.features.pings.run_pings import Pings
from flask_cronjobs.models import JobDefinition, JobRun
from flask_cronjobs.types import Claim
from tests.monitor import Monitor
from tests.process.support import wait_until
from tests.resident import Resident
from tests.rows import ago

pytestmark = pytest.mark.usefixtures("context")

Start = Callable[[], Resident]
AGAIN = Retry(max_attempts=2, base=0, jitter=False)


@pytest.fixture
def run(jobs: CronJobs, db: SQLAlchemy, monitor: Monitor) -> Callable[..., None]:
    """Declare a nightly handler that pings the monitor, and run it until it ends."""

    def run(handler: Any, ping: str = "uuid", **options: Any) -> None:
        jobs.task(name="nightly", schedule="@yearly", ping=monitor.url + ping, **options)(handler)
        jobs.tick()
        jobs.run_now("nightly")
        jobs.tick()
        jobs.tick()

    return run


def paths(monitor: Monitor) -> list[str]:
    return [path for path, _ in monitor.requests]


def _fail() -> None:
    raise ValueError


def _fail_once() -> None:
    if current_run.attempt == 1:
        raise ValueError


def _discard() -> None:
    raise Discard


async def _later() -> None: ...


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (lambda: None, ["/start", ""]),
        (_later, ["/start", ""]),
        (_fail, ["/start", "/start", "/fail"]),
        (_fail_once, ["/start", "/start", ""]),
        (_discard, ["/start", "/fail"]),
    ],
    ids=["success", "async", "no attempt is left", "success of a retry", "discarded"],
)
def test_start_and_end_are_pinged(
    run: Callable[..., None], monitor: Monitor, handler: Any, told: list[str]
) -> None:
    run(handler, retry=AGAIN)
    assert paths(monitor) == [f"/uuid{path}" for path in told]


@pytest.mark.parametrize("posts", [True, False], ids=["takes POST", "takes GET alone"])
def test_label_is_the_body_without_what_is_hidden(
    run: Callable[..., None], monitor: Monitor, posts: bool
) -> None:
    monitor.posts = posts
    payload = {"invoice": 5, "password": "s3cr3t"}
    run(lambda invoice, password: None, label="invoice {invoice}, {password}", payload=payload)
    assert paths(monitor) == ["/uuid/start", "/uuid"]
    assert monitor.bodies == 2 * [b"invoice 5, ***"]


def test_enqueued_run_and_other_definitions_ping_nothing(jobs: CronJobs, monitor: Monitor) -> None:
    @jobs.task(schedule="@yearly", ping=f"{monitor.url}uuid")
    def nightly() -> None: ...

    nightly.schedule("@yearly", name="silent")
    jobs.tick()
    nightly.using(commit=True).enqueue()
    jobs.run_now("silent")
    assert jobs.tick().succeeded == 2
    assert paths(monitor) == []


def test_ping_of_a_definition_in_the_database_can_be_changed(
    jobs: CronJobs, monitor: Monitor
) -> None:
    jobs.task(name="it")(lambda: None)
    for url in (f"{monitor.url}first", f"{monitor.url}second", None):
        jobs.add_definition("nightly", "it", schedule="@yearly", ping=url)
        jobs.run_now("nightly")
        assert jobs.tick().succeeded == 1
    assert paths(monitor) == ["/first/start", "/first", "/second/start", "/second"]


@pytest.mark.parametrize(
    "values",
    [
        {"status": "running", "locked_by": "gone:1:x", "locked_until": ago(5),
         "concurrency_share": 1},
        {"status": "failed", "failed_at": ago(5)},
    ],
    ids=["its worker died", "no attempt is left"],
)  # fmt: skip
def test_run_that_ends_without_a_worker_is_reported_as_failed(
    jobs: CronJobs, db: SQLAlchemy, monitor: Monitor, values: dict[str, Any]
) -> None:
    jobs.task(name="nightly", schedule="@yearly", ping=f"{monitor.url}uuid")(lambda: None)
    jobs.tick()
    jobs.run_now("nightly")
    db.session.execute(update(JobRun).values({"attempts": 1, "max_attempts": 1, **values}))
    db.session.commit()
    jobs.tick()
    assert paths(monitor) == ["/uuid/fail"]


@pytest.mark.parametrize(
    ("module", "step", "ended"),
    [(leases, "end_spent", ["/lost/fail"]), (ticks, "finish", ["/lost/fail", "/spent/fail"])],
)
def test_ends_that_a_tick_has_recorded_are_pinged_though_it_fails_later(
    jobs: CronJobs,
    db: SQLAlchemy,
    monitor: Monitor,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    step: str,
    ended: list[str],
) -> None:
    for name in ("lost", "spent"):
        jobs.task(name=name, schedule="@yearly", ping=f"{monitor.url}{name}")(lambda: None)
    jobs.tick()
    rows: dict[str, dict[str, Any]] = {
        "lost": {
            "status": "running",
            "locked_by": "gone:1:x",
            "locked_until": ago(5),
            "concurrency_share": 1,
        },
        "spent": {"status": "failed", "failed_at": ago(5)},
    }
    for name, values in rows.items():
        jobs.run_now(name)
        this = update(JobRun).where(JobRun.job_type == name)
        db.session.execute(this.values(attempts=1, max_attempts=1, **values))
        db.session.commit()

    def fail(*_: object) -> None:
        raise DatabaseTrouble("the database has gone")

    monkeypatch.setattr(module, step, fail)
    with pytest.raises(DatabaseTrouble):
        jobs.tick()
    assert sorted(paths(monitor)) == ended


@pytest.mark.parametrize("kind", ["lost", "spent"])
def test_ends_of_one_batch_are_pinged_though_the_next_batch_fails(
    jobs: CronJobs, db: SQLAlchemy, monitor: Monitor, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name in ("first", "second"):
        jobs.task(name=name, schedule="@yearly", ping=f"{monitor.url}it")(lambda: None)
    jobs.tick()
    for name in ("first", "second"):
        jobs.run_now(name)
    values: dict[str, Any] = {"status": "failed", "failed_at": ago(5)}
    if kind == "lost":
        values = {"status": "running", "locked_by": "gone:1:x", "locked_until": ago(5)}
        values["concurrency_share"] = 1
    db.session.execute(update(JobRun).values(attempts=1, max_attempts=1, **values))
    db.session.commit()
    step = {"lost": "look_for_expired", "spent": "end_spent"}[kind]
    real = getattr(leases, step)

    def fail_after_the_first_end(books: Bookkeeping) -> object:
        if db.session.scalars(select(JobRun.status)).all().count("dead") > 0:
            raise DatabaseTrouble("the database has gone")
        return real(books)

    monkeypatch.setattr(leases, "TAKEN_AT_ONCE", 1)
    monkeypatch.setattr(leases, step, fail_after_the_first_end)
    with pytest.raises(DatabaseTrouble):
        jobs.tick()
    assert paths(monitor) == ["/it/fail"]


class TestTrouble:
    def test_slow_monitor_holds_up_no_run_and_the_end_for_a_limited_time(
        self,
        run: Callable[..., None],
        monitor: Monitor,
        db: SQLAlchemy,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monitor.delay = 60.0
        monkeypatch.setattr("flask_cronjobs.features.pings.run_pings.CLOSE_SECONDS", 0.2)
        run(lambda: None)
        ended = db.session.scalars(select(JobRun)).one()
        assert ended.finished_at is not None
        assert ended.started_at is not None
        assert (ended.finished_at - ended.started_at).total_seconds() < 59
        assert "took longer than 0.2 s and were dropped" in caplog.text

    def test_pings_that_a_monitor_does_not_keep_up_with_are_dropped(
        self,
        state: State,
        jobs: CronJobs,
        monitor: Monitor,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        jobs.task(name="it")(lambda: None)
        jobs.add_definition("it", "it", schedule="@yearly", ping=monitor.url)
        monkeypatch.setattr(run_pings, "MAX_WAITING_PINGS", 2)
        monitor.delay = 0.2
        pings = Pings(state)
        for _ in range(6):
            pings.started(Claim(1, "t", "it", {}, 1, 1, ago(0), definition_id=1))
        pings.close()
        assert 2 <= len(monitor.requests) <= 3
        assert "was dropped, since 2 others are waiting to be sent" in caplog.text

    def test_url_that_somebody_wrote_into_the_table_harms_nothing_and_is_not_logged(
        self, jobs: CronJobs, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
    ) -> None:
        jobs.task(name="it")(lambda: None)
        jobs.add_definition("it", "it", schedule="@yearly")
        for url in ("http://[s3cr3t", "file:///etc/s3cr3t"):
            db.session.execute(update(JobDefinition).values(ping_url=url))
            db.session.commit()
            jobs.run_now("it")
            assert jobs.tick().succeeded == 1
        assert "ping" in caplog.text
        assert "s3cr3t" not in caplog.text

    def test_database_that_does_not_answer_loses_the_ping_alone(
        self,
        run: Callable[..., None],
        db: SQLAlchemy,
        monitor: Monitor,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        from flask_cronjobs import DatabaseTrouble

        def fail(books: Bookkeeping) -> dict[int, str]:
            raise DatabaseTrouble("The database is gone.")

        monkeypatch.setattr(run_pings, "ping_urls", fail)
        run(lambda: None)
        assert db.session.scalars(select(JobRun.status)).all() == ["succeeded"]
        assert "A ping of a definition was not sent: The database is gone." in caplog.text


class TestSecrecy:
    def test_admin_shows_the_host_alone(
        self, app: Flask, jobs: CronJobs, state: State, db: SQLAlchemy
    ) -> None:
        url = "https://ada:s3cr3t@monitor.example/s3cr3t"
        jobs.task(name="it", schedule="@yearly", ping=url)(lambda: None)
        jobs.tick()
        for arguments in ([], ["--json"]):
            result = app.test_cli_runner().invoke(args=["jobs", "admin", "definitions", *arguments])
            assert "s3cr3t" not in result.output
            if arguments:
                assert json.loads(result.output)["definitions"][0]["ping"] == "monitor.example"
        with Bookkeeping(db.engine) as books:
            row = find(books, "it")
        assert row is not None
        assert row.spec.ping_url == url
        assert "s3cr3t" not in repr(row)
        assert "s3cr3t" not in repr(jobs.declarations["it"])


class TestPing:
    """These hold for every ping."""

    def test_it_asks_for_the_path_and_the_query(self, monitor: Monitor) -> None:
        ping(None)
        ping(f"{monitor.url}uuid?a=b")
        assert monitor.requests == [("/uuid?a=b", None)]

    def test_name_and_password_are_sent_and_not_logged(
        self, monitor: Monitor, caplog: pytest.LogCaptureFixture
    ) -> None:
        monitor.status = 500
        ping(monitor.url.replace("//", "//ada:s3cr3t%2F@") + "hidden-uuid")
        assert monitor.requests == [("/hidden-uuid", "Basic YWRhOnMzY3IzdC8=")]
        assert "500" in caplog.text
        assert "s3cr3t" not in caplog.text
        assert "hidden-uuid" not in caplog.text

    def test_monitor_that_answers_byte_by_byte_leaves_no_thread(
        self, monitor: Monitor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monitor.drips = True
        monkeypatch.setattr(http, "TIMEOUT_SECONDS", 0.2)
        assert ping(monitor.url) is False
        wait_until(lambda: "cronjobs-ping" not in {thread.name for thread in threading.enumerate()})
        assert [record.getMessage() for record in caplog.records] == [
            "The ping to 127.0.0.1 took longer than 0.2 s and was abandoned"
        ]

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_body_is_not_redirected(
        self, monitor: Monitor, status: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        monitor.status, monitor.location = status, "/elsewhere"
        assert ping(monitor.url, b"{}") is False
        assert paths(monitor) == ["/"]
        assert "Set the URL that it redirects to" in caplog.text

    @pytest.mark.parametrize(
        "url",
        ["file:///etc/hostname", "ftp://localhost/x", "http://[", "http://", "http://127.0.0.1:1/"],
    )
    def test_what_cannot_be_sent_harms_nothing(
        self, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        ping(url)
        assert "The ping to" in caplog.text

    @pytest.mark.parametrize("location", ["file:///etc/hostname", "ftp://localhost/x"])
    def test_redirect_leads_to_web_pages_alone(
        self, monitor: Monitor, location: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        monitor.status, monitor.location = 302, location
        ping(monitor.url)
        assert "The ping to" in caplog.text


class TestPingOfTicks:
    """With ``CRONJOBS_PING_URL``, each tick that did its work pings; silence means an alarm."""

    @pytest.fixture
    def app(self, app: Flask, monitor: Monitor) -> Flask:
        app.config["CRONJOBS_PING_URL"] = f"{monitor.url}uuid"
        return app

    def test_a_tick_pings_unless_it_could_not_do_its_work(
        self, jobs: CronJobs, db: SQLAlchemy, monitor: Monitor
    ) -> None:
        jobs.tick()
        assert monitor.requests == [("/uuid", None)]
        db.drop_all()
        with pytest.raises(TablesMissing):
            jobs.tick()
        assert len(monitor.requests) == 1

    def test_a_resident_worker_pings_each_minute(
        self, monitor: Monitor, resident: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # fmt: skip
        monkeypatch.setattr(resident_module, "MINUTE", 0.05)
        resident()
        wait_until(lambda: len(monitor.requests) > 2)
        assert set(monitor.requests) == {("/uuid", None)}
