"""An operator's actions on the pages."""

from __future__ import annotations

import logging
import re
from html import unescape
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from itsdangerous import URLSafeTimedSerializer
from sqlalchemy import event

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobDefinition
from tests.marks import on_both, on_postgresql

from .conftest import NOW, OWN, Pages


class Unspeakable:
    """A user whose name raises an error."""

    def __str__(self) -> str:
        raise RuntimeError("no name")


@pytest.mark.parametrize(
    ("verb", "before", "after", "message"),
    [
        ("retry", "dead", "queued", "Run 1 is queued again. The next tick runs it."),
        ("cancel", "queued", "cancelled", "Run 1 is cancelled."),
        ("cancel", "running", "running", "Run 1 was asked to stop. Its worker stops it within"),
        ("discard", "dead", "cancelled", "Run 1 is discarded."),
        ("retry", "succeeded", "succeeded", "Nothing was changed. Run 1 succeeded."),
        ("cancel", "dead", "dead", "Nothing was changed. Run 1 ended as dead"),
    ],
)
def test_action_changes_the_status_of_a_run(
    pages: Pages, verb: str, before: str, after: str, message: str
) -> None:
    run_id = pages.add(before)
    answer = pages.post(f"/jobs/runs/{run_id}/{verb}")
    assert answer.location == f"/jobs/runs/{run_id}#message"
    assert pages.said(answer).startswith(message)
    assert pages.status(run_id) == after
    page = pages.text(f"runs/{run_id}")
    assert ("cancelled by ada" in page) == (after == "cancelled" and verb == "cancel")
    assert ("It was asked to stop." in page) == (after == "running")


def test_a_run_that_a_pause_holds_back_is_not_promised_to_the_next_tick(pages: Pages) -> None:
    pages.define()
    run_id = pages.add("dead", job_type="remind")
    with pages.app.app_context():
        pages.jobs.pause(task="remind")
    queue = "definitions/run", f"runs/{run_id}/again", f"runs/{run_id}/retry"
    for path in queue:
        message = pages.said(pages.post(f"/jobs/{path}", name="remind"))
        assert "It waits until the task remind is resumed." in message


@on_postgresql
def test_action_whose_answer_is_lost_is_not_said_to_have_failed(pages: Pages) -> None:
    """If the page said to try again, a second run would be queued."""
    pages.define()
    seen: list[str] = []

    def lose(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)
        if statement == "COMMIT" and any("INSERT INTO job_runs" in text for text in seen):
            event.remove(pages.engine, "after_cursor_execute", lose)
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    event.listen(pages.engine, "after_cursor_execute", lose)
    answer = pages.post("/jobs/definitions/run", name="remind")
    assert answer.status_code == 503
    assert "It is not known whether the change was committed" in answer.text
    assert "Try again" not in answer.text
    assert len(pages.runs()) == 1


@on_both
def test_runs_whose_error_has_a_long_name_are_retried_together(pages: Pages) -> None:
    @pages.jobs.task(retry=1)
    def fail() -> None:
        raise type("E" * 300, (Exception,), {})

    with pages.app.app_context():
        for _ in range(2):
            pages.jobs.enqueue("fail", {}, commit=True)
        pages.jobs.tick()
    form = pages.text().partition('action="/jobs/dead/retry"')[2].partition("</form>")[0]
    fields = dict(re.findall(r'name="([^"]*)" value="([^"]*)"', form))
    # Browsers send each line break as two characters.
    sent = {name: unescape(value).replace("\n", "\r\n") for name, value in fields.items()}
    message = pages.said(pages.post("/jobs/dead/retry", **sent))
    assert message == "2 runs of fail are queued again."


def test_run_now_is_for_definitions(pages: Pages) -> None:
    """The page offers only tasks with a schedule."""
    assert pages.post("/jobs/definitions/run", name="break_down").status_code == 404
    assert pages.runs() == []
    pages.define("a name/with <all>")
    message = pages.said(pages.post("/jobs/definitions/run", name="a name/with <all>"))
    assert message.startswith("Run 1 of a name/with &lt;all&gt; is queued.")
    assert pages.status(1) == "queued"


@pytest.mark.parametrize(
    ("path", "form", "values"),
    [
        ("definitions/run", {"name": "nightly"}, {"job_type": "gone"}),
        ("resume", {"what": "definition:nightly"}, {"schedule": "61 * * * *", "paused_at": NOW}),
    ],
)
def test_action_that_a_definition_does_not_allow_is_explained(
    pages: Pages, path: str, form: dict[str, str], values: dict[str, Any]
) -> None:
    pages.define("nightly", **values)
    answer = pages.post(f"/jobs/{path}", **form)
    assert pages.said(answer).startswith("Nothing was changed.")


def test_what_is_not_there_is_404(pages: Pages) -> None:
    pages.define("nightly")
    what = "definition:nightli"
    for path, form in (
        *((verb, {"what": what}) for verb in ("pause", "resume")),
        ("definitions/run", {"name": "nightli"}),
    ):
        answer = pages.post(f"/jobs/{path}", **form)
        assert (answer.status_code, "Did you mean" in answer.text) == (404, True), path
    for path in ("7/retry", "7/cancel", "99999999999999999999/retry"):
        assert pages.post(f"/jobs/runs/{path}").status_code == 404, path


def test_a_form_with_a_field_missing_is_400(pages: Pages) -> None:
    for path in (
        *("pause", "resume", "definitions/run", "dead/retry"),
        *("effects/done", "effects/redo", "batches/close"),
    ):
        for form in ({}, {"key": "", "name": " ", "task": ""}):
            answer = pages.post(f"/jobs/{path}", **form)
            assert (answer.status_code, "is missing" in answer.text) == (400, True), path


def test_a_group_is_retried_and_no_other(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """One click retries a limited number, and reports how many are left."""
    monkeypatch.setattr("flask_cronjobs.web.actions.RUNS_A_CLICK", 2)
    group = [pages.add("dead") for _ in range(3)]
    unpicked = [
        pages.add("dead", **values)
        for values in ({"error_type": "KeyError"}, {"error_type": None}, {"job_type": "break_down"})
    ]
    form = {"task": "remind", "error_type": "ValueError"}
    assert pages.said(pages.post("/jobs/dead/retry", **form)) == (
        "2 runs of remind are queued again. 1 more is left; repeat the action to change them."
    )
    message = pages.said(pages.post("/jobs/dead/retry", **form))
    assert message == "1 run of remind is queued again."
    assert {pages.status(run_id) for run_id in group} == {"queued"}
    assert {pages.status(run_id) for run_id in unpicked} == {"dead"}


@pytest.mark.parametrize("form", [{"error_type": ""}, {}])
def test_the_group_without_a_type_of_error_is_not_all_of_the_task(
    pages: Pages, form: dict[str, str]
) -> None:
    without, typed = pages.add("dead", error_type=None), pages.add("dead")
    pages.post("/jobs/dead/retry", task="remind", **form)
    assert (pages.status(without), pages.status(typed)) == ("queued", "dead")


@pytest.mark.parametrize(
    ("verb", "message", "again"),
    [("done", "marked as done", "Nothing was changed"), ("redo", "marked as not done", "404")],
)
def test_an_effect_in_doubt_is_resolved(pages: Pages, verb: str, message: str, again: str) -> None:
    pages.effect("charge:1", state="in_doubt")
    assert "It was done" in pages.text()
    assert message in pages.said(pages.post(f"/jobs/effects/{verb}", key="charge:1"))
    assert "It was done" not in pages.text()
    answer = pages.post(f"/jobs/effects/{verb}", key="charge:1")
    assert again in (str(answer.status_code) if again == "404" else pages.said(answer))


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
    app.test_client().post("/jobs/pause", data={"what": "definition:n"}, headers=OWN)
    assert f"paused by {named}: definition n" in [record.message for record in caplog.records]


class TestMessage:
    """The message is stored in its own cookie."""

    @pytest.fixture
    def act(self, pages: Pages) -> Any:
        return lambda: pages.post(f"/jobs/runs/{pages.add('dead')}/retry")

    def test_needs_no_secret_key_and_leaves_the_apps_flashes_alone(
        self, pages: Pages, act: Any
    ) -> None:
        with pages.client.session_transaction() as session:
            session["_flashes"] = [("message", "theirs")]
        assert "is queued again" in pages.said(act())
        with pages.client.session_transaction() as session:
            assert session["_flashes"] == [("message", "theirs")]
        pages.app.config["SECRET_KEY"] = None
        assert "is queued again" in pages.said(act())

    def test_fits_a_cookie_if_it_is_long(self, pages: Pages) -> None:
        name = "\N{PERSON WITH FOLDED HANDS}" * 200
        pages.define(name, job_type=name)
        answer = pages.post("/jobs/definitions/run", name=name)
        assert len(answer.headers["Set-Cookie"]) < 4096
        assert pages.said(answer).endswith("…")

    def test_of_another_site_is_not_shown(self, pages: Pages) -> None:
        """A subdomain can set cookies for its parent, and so for the pages."""
        serializer = URLSafeTimedSerializer("another app's", salt="cronjobs_message")
        signed = serializer.dumps(["good", "Your password expired", None])
        for cookie in ("good%20Your%20password", str(signed)):
            pages.client.set_cookie("cronjobs_message", cookie, path="/jobs/")
            assert "password" not in pages.text()

    def test_is_for_the_pages_and_for_no_script_and_stays_on_tls(self, pages: Pages) -> None:
        def cookie(base: str) -> str:
            path = f"/jobs/runs/{pages.add('dead')}/retry"
            return pages.client.post(path, headers=OWN, base_url=base).headers["Set-Cookie"]

        header = cookie("http://localhost")
        for part in ("HttpOnly", "SameSite=Strict", "Path=/jobs/", "Max-Age=60"):
            assert part in header
        assert "; Secure" not in header
        assert "; Secure" in cookie("https://localhost")
        pages.app.config["SESSION_COOKIE_SECURE"] = True  # TLS ends at a proxy that sets no header.
        assert "; Secure" in cookie("http://localhost")


class TestActionOnADefinition:
    """The action leads back to the page of its button."""

    def _sent(self, pages: Pages, url: str, action: str) -> dict[str, str]:
        """Return the fields of the form for *action* on the page *url*."""
        form = pages.get(url).text.partition(f'action="/jobs/{action}"')[2]
        fields = re.findall(r'name="([^"]*)" value="([^"]*)"', form.partition("</form>")[0])
        return {name: unescape(value) for name, value in fields}

    @pytest.mark.parametrize("action", ["pause", "definitions/run"])
    @pytest.mark.parametrize(
        "url",
        ["/jobs/", "/jobs/?sort=next&page=1", "/jobs/definition?name=a%26b"],
    )
    def test_stays_on_its_page(self, pages: Pages, url: str, action: str) -> None:
        pages.define("a&b", job_type="remind")
        answer = pages.post(f"/jobs/{action}", **self._sent(pages, url, action))
        assert answer.location == f"{url}#message"
        assert re.search("a&amp;b is (paused|queued)", pages.said(answer))

    def test_that_removes_it_leads_to_the_others(self, pages: Pages) -> None:
        pages.define("gone", job_type="gone")
        fields = self._sent(pages, "/jobs/definition?name=gone", "definitions/remove")
        answer = pages.post("/jobs/definitions/remove", **fields)
        assert answer.location == "/jobs/#message"

    def test_leads_to_our_pages_with_what_they_know(self, pages: Pages) -> None:
        pages.define("nightly")
        odd = "status?_external=1&_scheme=evil&endpoint=x&said=x&page=2"
        for back, leads in (
            *((back, "/jobs/") for back in ("", "?", "logout?name=x", "//evil.example/?name=x")),
            *((back, "/jobs/") for back in ("https://evil.example", "run?run_id=1")),
            (odd, "/jobs/?page=2"),
        ):
            answer = pages.post("/jobs/pause", what="definition:nightly", back=back)
            assert answer.location == f"{leads}#message", back
