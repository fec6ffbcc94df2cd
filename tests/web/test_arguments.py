"""The forms for arguments: run now, run again, retry with another payload."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

import pytest
from werkzeug.test import TestResponse

from flask_cronjobs import CronJobs

from .conftest import Pages
from .crawl import Reader


@pytest.fixture
def jobs(jobs: CronJobs) -> CronJobs:
    @jobs.task
    def send(user: int, word: str = "a", token: str = "") -> None:
        """Send one letter.

        It is <b>long</b>.
        """

    return jobs


def sent(answer: TestResponse) -> dict[str, str]:
    """Return what a browser sends for the unchanged form."""
    forms = Reader("", answer.text).forms()
    return dict(next(form.fields for form in forms if form.method == "post"))


def fields(answer: TestResponse) -> dict[str, str]:
    """Return the contents of the form's fields, by the arguments' names."""
    return {name.partition(":")[2]: text for name, text in sent(answer).items() if ":" in name}


def test_form_for_a_run_shows_its_handler_and_its_payload(pages: Pages) -> None:
    run_id = pages.add("dead", job_type="send", payload={"user": 1, "word": "</textarea>"})
    answer = pages.get(f"/jobs/runs/{run_id}/edit")
    assert answer.status_code == 200
    assert "send(user, word=…, token=…)" in answer.text
    assert "It is &lt;b&gt;long" in answer.text
    assert f">Retry run {run_id} with these arguments<" in answer.text
    assert ">Run again with these arguments<" in answer.text
    assert fields(answer) == {"user": "1", "word": "</textarea>", "token": ""}


def test_retry_with_another_payload(pages: Pages) -> None:
    run_id = pages.add("dead", job_type="send", payload={"user": 1})
    answer = pages.post(f"/jobs/runs/{run_id}/retry", payload='{"user": 2}')
    assert answer.location == f"/jobs/runs/{run_id}#message"
    (run,) = pages.runs()
    assert (run.status, run.payload) == ("queued", {"user": 2})


def test_run_again_leads_to_the_new_run(pages: Pages) -> None:
    run_id = pages.add("succeeded", job_type="send", payload={"user": 1})
    answer = pages.post(f"/jobs/runs/{run_id}/again")
    _, new = pages.runs()
    assert answer.location == f"/jobs/runs/{new.id}#message"
    pages.shows(f"runs/{new.id}", f"This is a new run, like run {run_id}.")
    assert (new.payload, new.status) == ({"user": 1}, "queued")


def test_run_now_with_arguments(pages: Pages) -> None:
    form = pages.get("/jobs/run?name=send")
    assert fields(form) == {"user": "", "word": "", "token": ""}
    answer = pages.post("/jobs/definitions/run", **sent(form))
    assert answer.status_code == 400
    assert "send() missing a required argument: &#39;user&#39;" in answer.text
    answer = pages.post("/jobs/definitions/run", **{**sent(form), "argument:user": "5"})
    (run,) = pages.runs()
    assert answer.location == f"/jobs/runs/{run.id}#message"
    assert (run.job_type, run.payload) == ("send", {"user": 5})


def test_what_cannot_be_used_is_shown_again_as_it_was_typed(pages: Pages) -> None:
    run_id = pages.add("dead", job_type="send", payload={"user": 1})
    for verb in ("retry", "again", "run"):
        for payload, message in (
            ('{"user": 1', "cannot be read"),
            ("[1]", "not a JSON object"),
            ('{"usr": 1}', "usr"),
            ("[" * 100_000, "nested too deeply"),
        ):
            if verb == "run":
                answer = pages.post("/jobs/definitions/run", name="send", payload=payload)
            else:
                answer = pages.post(f"/jobs/runs/{run_id}/{verb}", payload=payload)
            assert answer.status_code == 400
            assert "Nothing was changed." in answer.text
            assert message in html.unescape(answer.text)
            assert sent(answer)["payload"] == payload
            assert [(run.status, run.payload) for run in pages.runs()] == [("dead", {"user": 1})]


@pytest.mark.parametrize(
    ("stored", "shown", "status"),
    [
        ({"to": 7}, {"user": "7", "day": "2026-11-24"}, 303),
        ({"user": 7}, {"user": "7", "day": ""}, 303),
        ({"to": "broken"}, {"user": "", "day": ""}, 400),
    ],
)
def test_form_has_an_old_payload_as_the_upgrade_makes_it(
    pages: Pages, stored: dict[str, Any], shown: dict[str, str], status: int
) -> None:
    @pages.jobs.task
    def greet(user: int, day: date | None = None) -> None: ...

    @greet.upgrade
    def upgraded(payload: dict[str, Any]) -> dict[str, Any]:
        return {"user": payload["to"] + 0, "day": date(2026, 11, 24)}

    run_id = pages.add("dead", job_type="greet", payload=stored)
    form = pages.get(f"/jobs/runs/{run_id}/edit")
    assert fields(form) == shown
    assert pages.post(f"/jobs/runs/{run_id}/again", **sent(form)).status_code == status
    assert fields(pages.get("/jobs/run?name=greet")) == {"user": "", "day": ""}


class Kind(Enum):
    """The kinds of messages to send."""

    SHORT = "short"
    LONG = "long"


@dataclass
class Order:
    """An order of a shop."""

    id: int
    due: date | None = None


@pytest.fixture
def report(pages: Pages) -> None:
    """A task with arguments of many types."""

    @pages.jobs.task
    def report(
        day: date, kind: Kind = Kind.SHORT, dry: bool = False, order: Order | None = None,
        note: str = "", anything: Any = None, **more: float) -> None: ...  # fmt: skip


PAYLOADS: list[dict[str, Any]] = [
    {"day": "2026-11-24"},
    {
        "day": "2026-11-24",
        "kind": "long",
        "dry": True,
        "order": {"id": 1, "due": None},
        "note": "",
        "rate": 1.5,
    },
    {"day": "2026-11-24", "order": None, "note": "a\nb", "anything": "5"},
    {"day": "2026-11-24", "note": "5", "anything": {"a": [1]}},
    {"day": "2026-11-24", "note": '"quoted"', "anything": 5},
    {"day": "2026-11-24", "note": "x" * 200, "order": {"id": 2, "due": "2026-01-01"}},
]


@pytest.mark.usefixtures("report")
def test_form_that_nobody_touches_sends_what_is_stored(pages: Pages) -> None:
    for payload in PAYLOADS:
        run_id = pages.add("dead", job_type="report", payload=payload)
        form = pages.get(f"/jobs/runs/{run_id}/edit")
        assert pages.post(f"/jobs/runs/{run_id}/again", **sent(form)).status_code == 303
        assert pages.runs()[-1].payload == payload


@pytest.mark.parametrize("field", ["payload", "argument:user"])
def test_a_megabyte_is_refused_before_it_is_read(
    pages: Pages, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    pages.app.config["MAX_FORM_MEMORY_SIZE"] = None
    lengths: list[int] = []

    def note(text: str, **_: object) -> dict[str, object]:
        lengths.append(len(text))
        return {}

    for place in ("flask_cronjobs.web.actions.stored_json", "json.loads"):
        monkeypatch.setattr(place, note)
    form = {"name": "send", "task": "send", "payload": "{}", field: "[" * 1_000_000}
    answer = pages.post("/jobs/definitions/run", **form)
    assert answer.status_code == 400
    assert "bytes, the limit of CRONJOBS_MAX_PAYLOAD_BYTES" in answer.text
    assert max(lengths, default=0) < 1_000


@pytest.mark.usefixtures("report")
def test_form_has_a_field_for_each_argument_and_a_choice_where_there_are_few(pages: Pages) -> None:
    form = pages.get("/jobs/run?name=report")
    assert "day: a date such as 2026-11-24" in form.text
    assert re.findall('<option value="(.*?)"', form.text) == ["short", "long", "true", "false"]
    typed = {"argument:day": "2026-11-24", "argument:kind": "long", "argument:order": '{"id": 1}'}
    typed |= {"argument:dry": "true", "argument:note": "true", "payload": '{"rate": 2}'}
    assert pages.post("/jobs/definitions/run", **{**sent(form), **typed}).status_code == 303
    stored = {"day": "2026-11-24", "kind": "long", "order": {"id": 1, "due": None}, "dry": True}
    assert pages.runs()[0].payload == {**stored, "note": "true", "rate": 2}


@pytest.mark.usefixtures("report")
def test_field_that_does_not_fit_is_shown_again_as_it_was_typed(pages: Pages) -> None:
    for name, text, message in (
        ("day", "tomorrow", "day: expected a date such as 2026-11-24, got a value of type str."),
        ("kind", "green", "kind: expected one of 'short', 'long', got a value of type str."),
        ("order", '{"id": "x"}', "order['id']: expected a whole number, got a value of type str."),
        ("anything", "{x", "anything: this is not JSON"),
    ):
        form = {**sent(pages.get("/jobs/run?name=report")), "argument:day": "2026-11-24"}
        answer = pages.post("/jobs/definitions/run", **{**form, f"argument:{name}": text})
        assert answer.status_code == 400
        assert message in html.unescape(answer.text)
        assert fields(answer)[name] == text or name == "kind"
        assert pages.runs() == []


NESTED = json.loads("[" * 40 + "]" * 40)


@pytest.mark.parametrize("value", [{"token": "x"}, {"word": NESTED}])
def test_where_a_value_is_hidden_no_form_is_offered(pages: Pages, value: dict[str, Any]) -> None:
    run_id = pages.add("dead", job_type="send", payload={"user": 1, **value})
    pages.define("nightly", job_type="send", payload={"user": 1, **value})
    for path, form in (
        (f"runs/{run_id}", f"runs/{run_id}/edit"),
        ("definition?name=nightly", "run?name=nightly"),
    ):
        pages.shows(path, "Run again" if "runs" in path else "Run now", hides=[f"/jobs/{form}"])
        assert pages.get(f"/jobs/{form}").status_code == 403


def test_where_payloads_are_hidden_no_form_shows_them(pages: Pages) -> None:
    run_id = pages.add("dead", job_type="send", payload={"user": 4711})
    pages.define("nightly", job_type="send", payload={"user": 4711})
    assert fields(pages.get("/jobs/run?name=nightly"))["user"] == "4711"
    pages.hide_payloads()
    assert pages.get(f"/jobs/runs/{run_id}/edit").status_code == 403
    assert fields(pages.get("/jobs/run?name=nightly"))["user"] == ""
    pages.shows(f"runs/{run_id}", "Run again", hides=["/edit"])


def test_message_is_at_the_top_and_links_to_the_run(pages: Pages) -> None:
    pages.define("remind")
    assert pages.post("/jobs/definitions/run", name="remind").location == "/jobs/#message"
    page = pages.shows("", '<a href="/jobs/runs/1">Show run 1</a>')
    assert page.count('id="message"') == 1
    assert page.index('id="message"') < page.index("<h1")
