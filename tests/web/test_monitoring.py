"""The routes for machines: health, metrics, the tick by URL, and the ping."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import current_app, has_request_context, url_for

from flask_cronjobs import DatabaseTrouble, TickReport
from flask_cronjobs.core.tick import TickOptions
from flask_cronjobs.models import JobPause
from tests.marks import on_both

from .conftest import NOW, Pages

TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@on_both
def test_health_is_a_bare_word(pages: Pages) -> None:
    pages.rights.clear()

    def health() -> tuple[int, str, str | None]:
        answer = pages.get("/jobs/health")
        return answer.status_code, answer.text, answer.mimetype

    assert health() == (503, "never\n", "text/plain")
    pages.tick(600)
    assert health() == (503, "late\n", "text/plain")
    pages.tick(5)
    assert health() == (200, "ok\n", "text/plain")
    pages.add("queued", run_at=NOW.replace(year=2020))
    assert health() == (503, "overdue\n", "text/plain")


@pytest.mark.parametrize(
    ("path", "reads", "error", "status", "says"),
    [("health", "monitoring.read_verdict", DatabaseTrouble, 503, "down\n"),
     ("", "status.read_overview", DatabaseTrouble, 503, "The database does not answer"),
     ("", "status.read_overview", RuntimeError, 500, "Something went wrong")],
)  # fmt: skip
def test_in_trouble_nothing_leaks(
    pages: Pages, monkeypatch: pytest.MonkeyPatch,
    path: str, reads: str, error: type[Exception], status: int, says: str,
) -> None:  # fmt: skip
    def fail(*args: object) -> None:
        raise error("could not connect to db-1.internal as shop")

    monkeypatch.setattr(f"flask_cronjobs.web.{reads}", fail)
    answer = pages.get(f"/jobs/{path}")
    assert answer.status_code == status
    assert says in answer.text
    assert "db-1" not in answer.text


def _samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@on_both
def test_metrics(pages: Pages) -> None:
    def metrics() -> dict[str, float]:
        return _samples(pages.text("metrics"))

    assert "cronjobs_last_tick_age_seconds" not in metrics()
    pages.tick(5, succeeded=3, dead=1)
    pages.add("running"), pages.add("dead"), pages.add("queued", run_at=NOW.replace(year=2020))
    values = metrics()
    assert values['cronjobs_findings{id="pruning"}'] == 0
    assert not [name for name in values if name.startswith("cronjobs_handed")]
    pages.add("succeeded", finished_at=datetime.now(timezone.utc) - timedelta(days=16))
    hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
    pages.insert(JobPause(kind="queue", name="mail", paused_by="ada", paused_at=hour_ago))
    values = metrics()
    exact = {
        'outcomes_24h{outcome="succeeded"}': 3, 'outcomes_24h{outcome="dead"}': 1,
        'outcomes_24h{outcome="skipped"}': 0, "running_runs": 1, "healthy": 0,
        **{f'findings{{id="{check}"}}': 1 for check in ("overdue", "dead", "paused", "pruning")},
        **{f'findings{{id="{check}"}}': 0 for check in ("stale-runs", "missed-slots")},
    }  # fmt: skip
    assert {name: values[f"cronjobs_{name}"] for name in exact} == exact
    behind = values['cronjobs_finding_age_seconds{id="pruning"}']
    assert behind == pytest.approx(2 * 86400, abs=600)
    assert values["cronjobs_oldest_due_seconds"] > 86400
    assert 0 < values["cronjobs_last_tick_age_seconds"] < 60
    assert 3600 <= values['cronjobs_finding_age_seconds{id="paused"}'] < 3660


@pytest.mark.parametrize(
    ("version", "mimetype"),
    [
        ("1.0.0", "application/openmetrics-text"),
        *((odd, "") for odd in ("x", "1.0.0.0.0", "99999999999999999999.0.0", "", "1.0.0;;")),
    ],
)
def test_metrics_speak_openmetrics_to_who_asks_and_plain_text_otherwise(
    pages: Pages, version: str, mimetype: str
) -> None:
    accept = {"Accept": f"application/openmetrics-text; version={version}"}
    answer = pages.get("/jobs/metrics", headers=accept)
    assert answer.status_code == 200
    assert "cronjobs_healthy 0.0" in answer.text
    assert (answer.mimetype or "").startswith(mimetype)
    assert answer.text.endswith("# EOF\n") == (answer.mimetype != "text/plain")


def test_metrics_without_the_library_say_what_to_install(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client.exposition", None)
    answer = pages.get("/jobs/metrics")
    assert answer.status_code == 501
    assert "Flask-CronJobs[metrics]" in answer.text
    assert answer.mimetype == "text/plain"


class TestTick:
    """The tick by URL."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"CRONJOBS_TICK_TOKEN": TOKEN}

    @pytest.mark.parametrize("method", ["GET", "POST"])
    @on_both
    def test_ticks_and_says_what_it_did(self, pages: Pages, method: str) -> None:
        pages.rights.clear()  # The token is enough of a right.
        run_id = pages.add("queued")
        answer = pages.client.open("/jobs/tick", method=method, headers=BEARER)
        assert answer.status_code == 200
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.get_json()["succeeded"] == 1
        assert pages.status(run_id) == "succeeded"

    def test_a_handler_sees_nothing_of_the_request(self, pages: Pages) -> None:
        contexts: list[object] = []
        pages.app.add_url_rule("/reset", "reset", lambda: "")

        @pages.jobs.task(retry=1)
        def look() -> None:
            contexts.append((has_request_context(), current_app._get_current_object()))  # type: ignore[attr-defined]
            url_for("reset", _external=True)  # This is refused; it does not use the caller's Host.

        with pages.app.app_context():
            pages.jobs.enqueue("look", commit=True)
        answer = pages.client.post("/jobs/tick", headers=BEARER, base_url="http://10.0.0.5:8000")
        assert answer.get_json()["dead"] == 1
        assert contexts == [(False, pages.app)]

    @pytest.mark.parametrize("query", ["", f"?token={TOKEN}&access_token={TOKEN}"])
    @pytest.mark.parametrize(
        ("headers", "methods"),
        [
            (BEARER, ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")),
            ({}, ("GET", "POST")),  # The client has the rights of an operator.
            ({"Sec-Fetch-Site": "same-origin"}, ("GET", "POST")),
            *(
                ({"Authorization": value}, ("GET", "POST"))
                for value in (TOKEN, f"Token {TOKEN}", f"Basic {TOKEN}", f"Bearer {TOKEN}x",
                              f"Bearer {TOKEN[:-1]}", "Bearer ", "Bearer ümlaut-of-some-length")
            ),
        ],
    )  # fmt: skip
    def test_needs_the_token_and_get_or_post(
        self, pages: Pages, headers: dict[str, str], methods: tuple[str, ...], query: str
    ) -> None:
        run_id = pages.add("queued")
        for method in methods:
            answer = pages.client.open(f"/jobs/tick{query}", method=method, headers=headers)
            assert answer.status_code == 404
            assert TOKEN not in answer.text
        assert pages.status(run_id) == "queued"

    @pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
    def test_without_the_token_the_route_is_like_one_that_does_not_exist(
        self, pages: Pages, method: str
    ) -> None:
        pages.app.register_error_handler(404, lambda error: ("the app's own page", 404))
        here, nowhere = (
            pages.client.open(path, method=method) for path in ("/jobs/tick", "/jobs/nowhere")
        )
        assert here.status_code == nowhere.status_code == 404
        assert here.text == nowhere.text == "the app's own page"
        assert dict(here.headers) == dict(nowhere.headers)

    def test_a_second_tick_at_once_is_refused_at_once(self, pages: Pages) -> None:
        began, go_on = threading.Event(), threading.Event()

        @pages.jobs.task
        def wait() -> None:
            began.set()
            go_on.wait(30)

        with pages.app.app_context():
            pages.jobs.enqueue("wait", commit=True)
        codes: list[int] = []

        def tick() -> None:
            codes.append(pages.app.test_client().post("/jobs/tick", headers=BEARER).status_code)

        first = threading.Thread(target=tick)
        first.start()
        try:
            assert began.wait(30)
            answer = pages.client.post("/jobs/tick", headers=BEARER)
            assert answer.status_code == 409
            assert answer.json == {"error": "A tick by URL is running in this process already."}
        finally:
            go_on.set()
            first.join(30)
        assert codes == [200]
        assert pages.client.post("/jobs/tick", headers=BEARER).status_code == 200

    def test_the_budget_can_be_shortened(
        self, pages: Pages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        budgets: list[float | None] = []

        def spy(state: object, options: TickOptions) -> TickReport:
            assert not options.own_process
            budgets.append(options.budget)
            return TickReport("worker")

        monkeypatch.setattr("flask_cronjobs.web.monitoring.run_tick", spy)
        assert pages.client.post("/jobs/tick?budget=5", headers=BEARER).status_code == 200
        assert pages.client.post("/jobs/tick?budget=5000", headers=BEARER).status_code == 200
        assert pages.client.post("/jobs/tick?budget=soon", headers=BEARER).status_code == 400
        assert budgets == [5, 50]

    def test_a_tick_that_cannot_says_so_in_json(
        self, pages: Pages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: object) -> None:
            raise DatabaseTrouble("db-1.internal is gone")

        monkeypatch.setattr("flask_cronjobs.web.monitoring.run_tick", fail)
        answer = pages.client.post("/jobs/tick", headers=BEARER)
        assert answer.status_code == 503
        assert answer.json == {"error": "The tick could not do its work. The log says why."}
