"""What an operator does from the pages, on both databases."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from itsdangerous import URLSafeTimedSerializer
from werkzeug.test import TestResponse

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobDefinition, JobEffect, JobRun

from .conftest import NOW, OWN

Post = Callable[..., TestResponse]


class Unspeakable:
    """A user whose name cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no name")


@pytest.fixture
def status(app: Flask, db: SQLAlchemy) -> Callable[[int], str]:
    """The status of a run."""

    def status(run_id: int) -> str:
        with app.app_context():
            return db.session.get_one(JobRun, run_id).status

    return status


def _said(client: FlaskClient, answer: TestResponse) -> str:
    """What the page says that an action led to; it says so once."""
    assert answer.status_code == 303
    page = client.get(answer.location).text
    assert 'role="status"' in page
    assert 'role="status"' not in client.get(answer.location).text
    return page[page.index('role="status">') :].partition("</p>")[0].partition(">")[2]


def test_retry(
    client: FlaskClient, post: Post, add: Callable[..., int], status: Callable[[int], str]
) -> None:
    run_id = add("dead")
    answer = post(f"/jobs/runs/{run_id}/retry")
    assert answer.location == f"/jobs/runs/{run_id}#message"
    assert status(run_id) == "queued"
    assert _said(client, answer) == f"Run {run_id} is queued again. The next tick runs it."


def test_a_retried_run_succeeds_at_the_next_tick(
    app: Flask,
    jobs: CronJobs,
    post: Post,
    add: Callable[..., int],
    status: Callable[[int], str],
) -> None:
    run_id = add("dead")
    post(f"/jobs/runs/{run_id}/retry")
    with app.app_context():
        jobs.tick()
    assert status(run_id) == "succeeded"


def test_cancel_what_waits(
    client: FlaskClient, post: Post, add: Callable[..., int], status: Callable[[int], str]
) -> None:
    run_id = add("queued")
    assert _said(client, post(f"/jobs/runs/{run_id}/cancel")) == f"Run {run_id} is cancelled."
    assert status(run_id) == "cancelled"
    assert "cancelled by ada" in client.get(f"/jobs/runs/{run_id}").text


def test_cancel_what_runs_asks_its_worker(
    client: FlaskClient, post: Post, add: Callable[..., int], status: Callable[[int], str]
) -> None:
    run_id = add("running")
    assert "was asked to stop" in _said(client, post(f"/jobs/runs/{run_id}/cancel"))
    assert status(run_id) == "running"
    assert "It was asked to stop." in client.get(f"/jobs/runs/{run_id}").text


@pytest.mark.parametrize(("verb", "before"), [("retry", "succeeded"), ("cancel", "dead")])
def test_what_cannot_be_done_is_said_and_changes_nothing(
    client: FlaskClient,
    post: Post,
    add: Callable[..., int],
    status: Callable[[int], str],
    verb: str,
    before: str,
) -> None:
    run_id = add(before)
    said = _said(client, post(f"/jobs/runs/{run_id}/{verb}"))
    assert said.startswith(f"Nothing was changed. Run {run_id} ")
    assert before in said
    assert status(run_id) == before


@pytest.mark.parametrize("number", ["7", "99999999999999999999"])
@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_an_unknown_run_is_404(post: Post, verb: str, number: str) -> None:
    assert post(f"/jobs/runs/{number}/{verb}").status_code == 404


def test_pause_and_resume(
    app: Flask, db: SQLAlchemy, client: FlaskClient, post: Post, define: Callable[..., int]
) -> None:
    define("nightly")
    assert "nightly is paused" in _said(client, post("/jobs/definitions/pause", name="nightly"))
    page = client.get("/jobs/").text
    assert ">Resume" in page
    assert ">Pause" not in page.partition('id="paused"')[0]
    assert "nightly is resumed" in _said(client, post("/jobs/definitions/resume", name="nightly"))
    assert ">Pause" in client.get("/jobs/").text
    assert "was not paused" in _said(client, post("/jobs/definitions/resume", name="nightly"))
    with app.app_context():
        row = db.session.query(JobDefinition).one()
        assert row.next_run_at is not None
        assert row.next_run_at > NOW


def test_resume_of_a_broken_schedule_is_refused_with_its_reason(
    client: FlaskClient, post: Post, define: Callable[..., int]
) -> None:
    define("nightly", schedule="61 * * * *", paused_at=NOW)
    said = _said(client, post("/jobs/definitions/resume", name="nightly"))
    assert said.startswith("Nothing was changed.")


def test_run_now(
    client: FlaskClient, post: Post, define: Callable[..., int], status: Callable[[int], str]
) -> None:
    define("a name/with <all>")
    said = _said(client, post("/jobs/definitions/run", name="a name/with <all>"))
    assert said.startswith("Run 1 of a name/with &lt;all&gt; is queued.")
    assert status(1) == "queued"


def test_run_now_of_an_orphaned_definition_says_why_not(
    client: FlaskClient, post: Post, define: Callable[..., int]
) -> None:
    define("nightly", job_type="gone")
    assert "Nothing was changed" in _said(client, post("/jobs/definitions/run", name="nightly"))


@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
def test_an_unknown_definition_is_404(post: Post, define: Callable[..., int], verb: str) -> None:
    define("nightly")
    answer = post(f"/jobs/definitions/{verb}", name="nightli")
    assert answer.status_code == 404
    assert "Did you mean" in answer.text


@pytest.mark.parametrize(
    "path", ["definitions/pause", "definitions/resume", "definitions/run", "dead/retry",
             "effects/done", "effects/redo"],
)  # fmt: skip
def test_a_form_with_a_field_missing_is_400(post: Post, path: str) -> None:
    answer = post(f"/jobs/{path}")
    assert answer.status_code == 400
    assert "is missing" in answer.text


def test_a_group_is_retried_and_no_other(
    client: FlaskClient, post: Post, add: Callable[..., int], status: Callable[[int], str]
) -> None:
    group = [add("dead"), add("dead")]
    others = [
        add("dead", error_type="KeyError"),
        add("dead", error_type=None),
        add("dead", job_type="break_down"),
    ]
    answer = post("/jobs/dead/retry", task="remind", error_type="ValueError")
    assert _said(client, answer) == "2 runs of remind are queued again."
    assert {status(run_id) for run_id in group} == {"queued"}
    assert {status(run_id) for run_id in others} == {"dead"}


def test_a_click_retries_so_many_at_most_and_says_how_many_are_left(
    client: FlaskClient, post: Post, add: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_cronjobs.web.actions.MOST", 2)
    for _ in range(3):
        add("dead")
    form = {"task": "remind", "error_type": "ValueError"}
    assert _said(client, post("/jobs/dead/retry", **form)) == (
        "2 runs of remind are queued again. 1 more is left; do the same again for the next ones."
    )
    assert _said(client, post("/jobs/dead/retry", **form)) == "1 run of remind is queued again."


@pytest.mark.parametrize("form", [{"error_type": ""}, {}])
def test_the_group_without_a_type_of_error_is_not_all_of_the_task(
    client: FlaskClient,
    post: Post,
    add: Callable[..., int],
    status: Callable[[int], str],
    form: dict[str, str],
) -> None:
    without, typed = add("dead", error_type=None), add("dead")
    answer = post("/jobs/dead/retry", task="remind", **form)
    assert _said(client, answer) == "1 run of remind is queued again."
    assert status(without) == "queued"
    assert status(typed) == "dead"


@pytest.mark.parametrize(
    ("verb", "said"), [("done", "marked as done"), ("redo", "marked as not done")]
)
def test_an_effect_in_doubt_is_resolved(
    app: Flask, db: SQLAlchemy, client: FlaskClient, post: Post, verb: str, said: str
) -> None:
    with app.app_context():
        db.session.add(JobEffect(key="charge:1", state="in_doubt"))
        db.session.commit()
    assert "It was done" in client.get("/jobs/effects").text
    assert said in _said(client, post(f"/jobs/effects/{verb}", key="charge:1"))
    assert "charge:1" not in client.get("/jobs/effects").text
    if verb == "done":
        assert "Nothing was changed" in _said(client, post("/jobs/effects/done", key="charge:1"))


def test_run_now_is_for_definitions(
    app: Flask, jobs: CronJobs, client: FlaskClient, post: Post, add: Callable[..., int]
) -> None:
    """The page offers no task without a schedule, so nobody can mean one."""
    answer = post("/jobs/definitions/run", name="break_down")
    assert answer.status_code == 404
    assert client.get("/jobs/runs/1").status_code == 404
    assert "is queued" in _said(client, post("/jobs/definitions/run", name="remind"))
    with app.app_context():
        assert jobs.run_now("break_down") == 2


def test_each_action_is_logged_with_who(
    post: Post,
    add: Callable[..., int],
    define: Callable[..., int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flask_cronjobs")
    define("nightly")
    first, second, _ = add("dead"), add("queued"), add("dead")
    post(f"/jobs/runs/{first}/retry")
    post(f"/jobs/runs/{second}/cancel")
    for verb in ("pause", "resume", "run"):
        post(f"/jobs/definitions/{verb}", name="nightly")
    post("/jobs/dead/retry", task="remind", error_type="ValueError")
    named = [record for record in caplog.records if hasattr(record, "cronjobs_actor")]
    assert len(named) == 8
    assert {record.cronjobs_actor for record in named} == {"ada"}


@pytest.mark.parametrize(
    ("actor", "named"),
    [
        (None, "the pages, from 127.0.0.1"),
        (lambda: "eve\nforged line", "eve forged line"),
        (lambda: "x" * 1000, "x" * 100),
        (lambda: 1 / 0, "the pages, from 127.0.0.1"),
        (lambda: Unspeakable(), "the pages, from 127.0.0.1"),
    ],
)
def test_the_actor_cannot_forge_the_log_nor_break_the_action(
    app: Flask, db: SQLAlchemy, caplog: pytest.LogCaptureFixture, actor: Any, named: str
) -> None:
    caplog.set_level(logging.INFO, "flask_cronjobs")
    CronJobs(app, authorize=lambda action: True, actor=actor)
    with app.app_context():
        db.create_all()
        db.session.add(JobDefinition(name="n", job_type="t", schedule="* * * * *"))
        db.session.commit()
    app.test_client().post("/jobs/definitions/pause", data={"name": "n"}, headers=OWN)
    assert f"paused by {named}: definition n" in [record.message for record in caplog.records]


def test_works_without_a_secret_key(
    app: Flask, client: FlaskClient, post: Post, add: Callable[..., int]
) -> None:
    app.secret_key = None
    assert "is queued again" in _said(client, post(f"/jobs/runs/{add('dead')}/retry"))


def test_the_apps_own_flashes_are_left_alone(
    app: Flask, client: FlaskClient, post: Post, add: Callable[..., int]
) -> None:
    with client.session_transaction() as session:
        session["_flashes"] = [("message", "theirs")]
    post(f"/jobs/runs/{add('dead')}/retry")
    client.get("/jobs/")
    with client.session_transaction() as session:
        assert session["_flashes"] == [("message", "theirs")]


def test_a_long_message_still_fits_a_cookie(
    client: FlaskClient, post: Post, define: Callable[..., int]
) -> None:
    name = "\N{PERSON WITH FOLDED HANDS}" * 200
    define(name, job_type=name)
    answer = post("/jobs/definitions/run", name=name)
    assert len(answer.headers["Set-Cookie"]) < 4096
    assert _said(client, answer).endswith("…")


def _plant(client: FlaskClient, text: str, key: str = "tests") -> None:
    signed = URLSafeTimedSerializer(key, salt="cronjobs_message").dumps(["good", text, "", None])
    client.set_cookie("cronjobs_message", str(signed), path="/jobs/")


@pytest.mark.parametrize("key", [None, "another app's"])
def test_a_message_that_another_site_plants_is_not_shown(
    client: FlaskClient, key: str | None
) -> None:
    """A subdomain can set cookies for its parent, and so for the pages."""
    if key is None:
        client.set_cookie("cronjobs_message", "good%20Your%20password%20expired", path="/jobs/")
    else:
        _plant(client, "Your password expired", key)
    answer = client.get("/jobs/")
    assert answer.status_code == 200
    assert "password" not in answer.text


def test_without_a_secret_key_the_process_signs_with_its_own(
    app: Flask, client: FlaskClient, post: Post, add: Callable[..., int]
) -> None:
    app.config["SECRET_KEY"] = None
    answer = post(f"/jobs/runs/{add('dead')}/retry")
    assert _said(client, answer) == "Run 1 is queued again. The next tick runs it."


def test_what_a_cookie_says_stays_text(client: FlaskClient) -> None:
    _plant(client, "<script>alert(1)</script>")
    page = client.get("/jobs/").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_the_cookie_is_for_the_pages_and_for_no_script(post: Post, add: Callable[..., int]) -> None:
    cookie = post(f"/jobs/runs/{add('dead')}/retry").headers["Set-Cookie"]
    assert cookie.startswith("cronjobs_message=")
    for part in ("HttpOnly", "SameSite=Strict", "Path=/jobs/", "Max-Age=60"):
        assert part in cookie


def test_the_cookie_stays_on_tls(
    app: Flask, client: FlaskClient, post: Post, add: Callable[..., int]
) -> None:
    def cookie(base: str) -> str:
        path = f"/jobs/runs/{add('dead')}/retry"
        return client.post(path, headers=OWN, base_url=base).headers["Set-Cookie"]

    assert "; Secure" not in cookie("http://localhost")
    assert "; Secure" in cookie("https://localhost")
    app.config["SESSION_COOKIE_SECURE"] = True  # TLS ends at a proxy that does not say so.
    assert "; Secure" in cookie("http://localhost")


class TestActionOnADefinition:
    """It leads back to the page on which its button is."""

    def _sent(self, client: FlaskClient, url: str, action: str) -> dict[str, str]:
        """The fields of the form for *action* on the page *url*."""
        form = client.get(url).text.partition(f'action="/jobs/definitions/{action}"')[2]
        fields = re.findall(r'name="([^"]*)" value="([^"]*)"', form.partition("</form>")[0])
        return {name: unescape(value) for name, value in fields}

    @pytest.mark.parametrize("action", ["pause", "run"])
    @pytest.mark.parametrize(
        "url",
        [
            "/jobs/",
            "/jobs/definition?name=a%26b",
            "/jobs/definitions?search=a%26b&sort=name",
            "/jobs/task?name=remind",
        ],
    )
    def test_stays_on_its_page(
        self, client: FlaskClient, post: Post, define: Callable[..., int], url: str, action: str
    ) -> None:
        define("a&b", job_type="remind")
        answer = post(f"/jobs/definitions/{action}", **self._sent(client, url, action))
        assert answer.location == f"{url}#message"
        assert re.search("a&amp;b is (paused|queued)", _said(client, answer))

    def test_that_removes_it_leads_to_the_others(
        self, client: FlaskClient, post: Post, define: Callable[..., int]
    ) -> None:
        define("gone", job_type="gone")
        fields = self._sent(client, "/jobs/definition?name=gone", "remove")
        assert post("/jobs/definitions/remove", **fields).location == "/jobs/definitions#message"

    @pytest.mark.parametrize(
        "back",
        [
            "",
            "?",
            "logout?name=x",
            "//evil.example/?name=x",
            "https://evil.example",
            "run?run_id=1",
        ],
    )
    def test_leads_to_no_other_page(
        self, post: Post, define: Callable[..., int], back: str
    ) -> None:
        define("nightly")
        answer = post("/jobs/definitions/pause", name="nightly", back=back)
        assert answer.location == "/jobs/#message"

    def test_passes_on_only_what_its_pages_know(
        self, post: Post, define: Callable[..., int]
    ) -> None:
        define("nightly")
        odd = "definitions?_external=1&_scheme=evil&endpoint=x&said=x&page=2"
        answer = post("/jobs/definitions/pause", name="nightly", back=odd)
        assert answer.location == "/jobs/definitions?page=2#message"
