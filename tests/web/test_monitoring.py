"""What machines ask: health, metrics, the tick by URL, and the ping."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask, current_app, has_request_context, url_for
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import update

from flask_cronjobs import CronJobs, DatabaseTrouble, TickReport
from flask_cronjobs.engine.tick import TickOptions
from flask_cronjobs.jobs.state import Throttle
from flask_cronjobs.models import JobPause, JobRun

from .conftest import NOW

TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def test_health_is_a_bare_word(
    client: FlaskClient,
    rights: set[str],
    ticked: Callable[..., None],
    add: Callable[..., int],
) -> None:
    rights.clear()

    def health() -> tuple[int, str, str | None]:
        answer = client.get("/jobs/health")
        return answer.status_code, answer.text, answer.mimetype

    assert health() == (503, "never\n", "text/plain")
    ticked(600)
    assert health() == (503, "late\n", "text/plain")
    ticked(5)
    assert health() == (200, "ok\n", "text/plain")
    add("queued", run_at=NOW.replace(year=2020))
    assert health() == (503, "overdue\n", "text/plain")


def test_health_without_tables_leaks_nothing(app: Flask, db: SQLAlchemy) -> None:
    CronJobs(app)
    answer = app.test_client().get("/jobs/health")
    assert (answer.status_code, answer.text) == (503, "down\n")


def test_health_without_a_database_leaks_nothing(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise DatabaseTrouble("could not connect to db-1.internal as shop")

    monkeypatch.setattr("flask_cronjobs.web.monitoring.read_verdict", fail)
    answer = client.get("/jobs/health")
    assert (answer.status_code, answer.text) == (503, "down\n")


def test_a_page_without_a_database_leaks_nothing(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise DatabaseTrouble("could not connect to db-1.internal as shop")

    monkeypatch.setattr("flask_cronjobs.web.views.read_overview", fail)
    answer = client.get("/jobs/")
    assert answer.status_code == 503
    assert "The database does not answer" in answer.text
    assert "db-1" not in answer.text


def _samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_metrics(client: FlaskClient, ticked: Callable[..., None], add: Callable[..., int]) -> None:
    ticked(5, succeeded=3, dead=1)
    add("running"), add("dead"), add("queued", run_at=NOW.replace(year=2020))
    assert _samples(client.get("/jobs/metrics").text)["cronjobs_prune_behind_seconds"] == 0
    add("succeeded", finished_at=datetime.now(timezone.utc) - timedelta(days=16))
    answer = client.get("/jobs/metrics")
    assert answer.status_code == 200
    found = _samples(answer.text)
    assert found['cronjobs_outcomes_24h{outcome="succeeded"}'] == 3
    assert found['cronjobs_outcomes_24h{outcome="dead"}'] == 1
    assert found["cronjobs_overdue_runs"] == 1
    assert found["cronjobs_running_runs"] == 1
    assert found["cronjobs_stale_runs"] == 0
    assert found["cronjobs_dead_runs_24h"] == 1
    assert found["cronjobs_healthy"] == 0
    assert found["cronjobs_prune_behind_seconds"] == pytest.approx(2 * 86400, abs=600)
    assert found["cronjobs_oldest_due_seconds"] > 86400
    assert 0 < found["cronjobs_last_tick_age_seconds"] < 60


def test_metrics_say_what_is_paused_and_for_how_long(
    app: Flask, client: FlaskClient, jobs: CronJobs, db: SQLAlchemy
) -> None:
    assert "cronjobs_paused_seconds{" not in client.get("/jobs/metrics").text
    with app.app_context():
        jobs.pause(queue="mail")
        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        db.session.execute(update(JobPause).values(paused_at=hour_ago))
        db.session.commit()
    found = _samples(client.get("/jobs/metrics").text)
    assert 3600 <= found['cronjobs_paused_seconds{kind="queue",name="mail"}'] < 3660


def test_metrics_speak_openmetrics_to_who_asks(client: FlaskClient) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = client.get("/jobs/metrics", headers=accept)
    assert answer.mimetype == "application/openmetrics-text"
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize("version", ["x", "1.0.0.0.0", "", "1.0.0;;", "99999999999999999999.0.0"])
def test_metrics_speak_plain_text_to_who_asks_for_what_there_is_not(
    client: FlaskClient, version: str
) -> None:
    accept = {"Accept": f"application/openmetrics-text; version={version}"}
    answer = client.get("/jobs/metrics", headers=accept)
    assert answer.status_code == 200
    assert "cronjobs_healthy 0.0" in answer.text


def test_metrics_without_the_library_say_what_to_install(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client.exposition", None)
    answer = client.get("/jobs/metrics")
    assert answer.status_code == 501
    assert "Flask-CronJobs[metrics]" in answer.text
    assert answer.mimetype == "text/plain"


class TestTick:
    """The tick by URL."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"CRONJOBS_TICK_TOKEN": TOKEN}

    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_ticks_and_says_what_it_did(
        self,
        app: Flask,
        db: SQLAlchemy,
        client: FlaskClient,
        rights: set[str],
        add: Callable[..., int],
        method: str,
    ) -> None:
        rights.clear()  # The token is right enough.
        run_id = add("queued")
        answer = client.open("/jobs/tick", method=method, headers=BEARER)
        assert answer.status_code == 200
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.json is not None
        assert answer.json["succeeded"] == 1
        with app.app_context():
            assert db.session.get_one(JobRun, run_id).status == "succeeded"

    def test_a_handler_sees_nothing_of_the_request(
        self, app: Flask, client: FlaskClient, jobs: CronJobs
    ) -> None:
        seen: list[object] = []

        @app.get("/reset")
        def reset() -> str:
            return ""

        @jobs.task(retry=1)
        def look() -> None:
            seen.append((has_request_context(), current_app._get_current_object()))  # type: ignore[attr-defined]
            url_for("reset", _external=True)  # Refused, rather than by the caller's Host.

        with app.app_context():
            jobs.enqueue("look", commit=True)
        answer = client.post("/jobs/tick", headers=BEARER, base_url="http://10.0.0.5:8000")
        assert answer.json is not None
        assert answer.json["dead"] == 1
        assert seen == [(False, app)]

    @pytest.mark.parametrize("query", ["", f"?token={TOKEN}&access_token={TOKEN}"])
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Token {TOKEN}"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": f"Bearer {TOKEN[:-1]}"},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer ümlaut-of-some-length"},
            {"Sec-Fetch-Site": "same-origin"},
        ],
    )
    def test_needs_the_token(
        self,
        app: Flask,
        db: SQLAlchemy,
        client: FlaskClient,
        add: Callable[..., int],
        headers: dict[str, str],
        query: str,
    ) -> None:
        run_id = add("queued")
        for method in ("GET", "POST"):  # The client has the rights of an operator.
            answer = client.open(f"/jobs/tick{query}", method=method, headers=headers)
            assert answer.status_code == 404
            assert TOKEN not in answer.text
        with app.app_context():
            assert db.session.get_one(JobRun, run_id).status == "queued"

    @pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
    def test_only_a_get_or_a_post_is_a_tick(
        self, app: Flask, db: SQLAlchemy, client: FlaskClient, add: Callable[..., int], method: str
    ) -> None:
        run_id = add("queued")
        assert client.open("/jobs/tick", method=method, headers=BEARER).status_code == 404
        with app.app_context():
            assert db.session.get_one(JobRun, run_id).status == "queued"

    @pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
    def test_without_the_token_the_route_is_like_one_that_does_not_exist(
        self, app: Flask, client: FlaskClient, method: str
    ) -> None:
        app.register_error_handler(404, lambda error: ("the app's own page", 404))
        here, nowhere = (
            client.open(path, method=method) for path in ("/jobs/tick", "/jobs/nowhere")
        )
        assert here.status_code == nowhere.status_code == 404
        assert here.text == nowhere.text == "the app's own page"
        assert dict(here.headers) == dict(nowhere.headers)

    def test_the_log_says_that_the_token_is_wrong(
        self, client: FlaskClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flask_cronjobs.web.guard._wrong_token", Throttle())
        for _ in range(3):
            client.post("/jobs/tick", headers={"Authorization": "Bearer wrong"})
        assert caplog.text.count("its bearer token is not CRONJOBS_TICK_TOKEN") == 1

    def test_a_second_tick_at_once_is_refused_at_once(
        self, app: Flask, client: FlaskClient, jobs: CronJobs
    ) -> None:
        began, go_on = threading.Event(), threading.Event()

        @jobs.task
        def wait() -> None:
            began.set()
            go_on.wait(30)

        with app.app_context():
            jobs.enqueue("wait", commit=True)
        codes: list[int] = []

        def tick() -> None:
            codes.append(app.test_client().post("/jobs/tick", headers=BEARER).status_code)

        first = threading.Thread(target=tick)
        first.start()
        try:
            assert began.wait(30)
            answer = client.post("/jobs/tick", headers=BEARER)
            assert answer.status_code == 409
            assert answer.json == {"error": "A tick by URL is running in this process already."}
        finally:
            go_on.set()
            first.join(30)
        assert codes == [200]
        assert client.post("/jobs/tick", headers=BEARER).status_code == 200

    def test_the_budget_can_be_shortened(
        self, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        budgets: list[float | None] = []

        def spy(state: object, options: TickOptions) -> TickReport:
            assert not options.own_process
            budgets.append(options.budget)
            return TickReport("worker")

        monkeypatch.setattr("flask_cronjobs.web.monitoring.run_tick", spy)
        assert client.post("/jobs/tick?budget=5", headers=BEARER).status_code == 200
        assert client.post("/jobs/tick?budget=5000", headers=BEARER).status_code == 200
        assert client.post("/jobs/tick?budget=soon", headers=BEARER).status_code == 400
        assert budgets == [5, 50]

    def test_a_tick_that_cannot_says_so_in_json(
        self, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: object) -> None:
            raise DatabaseTrouble("db-1.internal is gone")

        monkeypatch.setattr("flask_cronjobs.web.monitoring.run_tick", fail)
        answer = client.post("/jobs/tick", headers=BEARER)
        assert answer.status_code == 503
        assert answer.json == {"error": "The tick could not do its work. The log says why."}


def test_the_tick_is_off_without_a_token(client: FlaskClient) -> None:
    assert client.post("/jobs/tick", headers=BEARER).status_code == 404
