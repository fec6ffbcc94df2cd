"""The pages of all definitions, of one definition and of one task."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from jinja2 import StrictUndefined

from flask_cronjobs import CronJobs
from flask_cronjobs.web.format import breakable, percent

from .conftest import NOW


@pytest.fixture(autouse=True)
def strict(app: Flask) -> None:
    """Nothing that a template names may be missing."""
    app.jinja_env.undefined = StrictUndefined


def _names(page: str) -> list[str]:
    """The definitions of a page, in their order."""
    return re.findall(r'<h3><a href="/jobs/definition\?name=([^"]*)"', page)


def test_the_overview_leads_to_all_definitions(
    client: FlaskClient, define: Callable[..., int]
) -> None:
    for number in range(60):
        define(f"d{number:02}")
    page = client.get("/jobs/").text
    assert len(_names(page)) == 25
    assert '<a href="/jobs/definitions">All 60 definitions</a>' in page


def test_definitions_come_in_pages_both_ways(
    client: FlaskClient, define: Callable[..., int]
) -> None:
    for number in range(120):
        define(f"d{number:03}")
    first = client.get("/jobs/definitions").text
    assert _names(first) == [f"d{number:03}" for number in range(50)]
    assert "120 definitions, page 1 of 3" in first
    assert "Previous" not in first
    second = client.get("/jobs/definitions?page=2&sort=name&search=d").text
    assert _names(second)[0] == "d050"
    assert 'rel="prev" href="/jobs/definitions?page=1&amp;search=d&amp;sort=name"' in second
    assert 'rel="next" href="/jobs/definitions?page=3&amp;search=d&amp;sort=name"' in second
    last = client.get("/jobs/definitions?page=9").text
    assert _names(last)[-1] == "d119"
    assert "Next" not in last.partition("<nav class")[2]


def test_what_needs_a_person_is_first_and_says_why(
    client: FlaskClient, define: Callable[..., int], add: Callable[..., int]
) -> None:
    define("a")
    add("dead", definition_id=define("b"))
    late = define("c", next_run_at=NOW - timedelta(hours=1))
    add("skipped", definition_id=late, error_type="Missed")
    for path in ("/jobs/", "/jobs/definitions"):
        page = client.get(path).text
        assert _names(page) == ["c", "b", "a"]
        words = ("missed slots", "late", "dead runs")
        assert re.findall(r'class="status (?:bad|warn)">([^<]*)', page) == list(words)
    assert _names(client.get("/jobs/definitions?state=late").text) == ["c"]


def test_the_form_keeps_what_was_asked_for(client: FlaskClient, define: Callable[..., int]) -> None:
    define()
    page = client.get('/jobs/definitions?search=x"y&state=paused&sort=next').text
    assert 'name="search" value="x&#34;y"' in page
    assert '<option value="paused" selected>' in page
    assert '<option value="next" selected>' in page
    assert "No definitions match" in page
    assert "No definitions yet" not in page


def test_without_definitions_the_list_says_how_to_begin(client: FlaskClient) -> None:
    assert "No definitions yet" in client.get("/jobs/definitions").text


def test_a_definition_tells_its_schedule_runs_numbers_and_slots(
    client: FlaskClient, define: Callable[..., int], add: Callable[..., int]
) -> None:
    definition = define("nightly", payload={"token": "x", "days": 3})
    for hours in range(1, 5):
        slot = NOW - timedelta(hours=hours)
        times = {"run_at": slot, "started_at": slot + timedelta(seconds=3)}
        times["finished_at"] = slot + timedelta(seconds=3 + hours)
        status = "dead" if hours == 4 else "succeeded"
        add(status, definition_id=definition, scheduled_for=slot, **times)
    page = client.get("/jobs/definition?name=nightly").text
    assert "<title>nightly · Jobs</title>" in page
    assert "Every day at 07:00, in the zone Europe/Berlin." in page
    assert "75 %" in page
    assert "3 of 4 runs that ended" in page
    assert "half within 2.0 s" in page
    assert "95 % within 4.0 s, all within 4.0 s" in page
    assert "half within 3.0 s" in page
    slots = page.partition('<ol class="slots">')[2].partition("</ol>")[0]
    assert slots.count("07:00</time>") == 10
    assert "&#34;token&#34;: &#34;***&#34;" in page
    assert 'href="/jobs/task?name=remind"' in page
    assert 'href="/jobs/runs?definition=nightly"' in page
    assert "10 attempts, exponential delays from 10 s to 1 h" in page
    assert "icon-warn.svg" in page


@pytest.mark.parametrize(
    ("values", "said", "icon"),
    [
        ({}, "No runs yet.", "good"),
        ({"paused_at": NOW}, "It is paused", "idle"),
        ({"schedule": "61 * * * *"}, "the minute field says", "warn"),
        ({"job_type": "gone"}, "does not declare it. Other code may", "warn"),
        ({"next_run_at": timedelta(minutes=-2)}, "no tick has recorded it yet", "good"),
    ],
)
def test_a_definition_says_what_is_wrong(
    client: FlaskClient,
    define: Callable[..., int],
    values: dict[str, Any],
    said: str,
    icon: str,
) -> None:
    # By the clock of now, not of when the tests were collected.
    now = datetime.now(timezone.utc)
    moments = {name: now + age for name, age in values.items() if isinstance(age, timedelta)}
    define(**{**values, **moments})
    page = client.get("/jobs/definition?name=remind").text
    assert said in page
    assert f"icon-{icon}.svg" in page


def test_payloads_stay_hidden(
    app: Flask, client: FlaskClient, define: Callable[..., int], settings: dict[str, Any]
) -> None:
    import dataclasses

    from flask_cronjobs.jobs.state import EXTENSION

    state = app.extensions[EXTENSION]
    hidden = dataclasses.replace(state.settings, show_payload=False)
    app.extensions[EXTENSION] = dataclasses.replace(state, settings=hidden)
    define(payload={"days": "many"})
    page = client.get("/jobs/definition?name=remind").text
    assert "many" not in page
    assert "Payloads are hidden" in page


def test_a_task_tells_its_code_definitions_and_runs(
    client: FlaskClient, jobs: CronJobs, define: Callable[..., int], add: Callable[..., int]
) -> None:
    define("one")
    define("two")
    add("dead", job_type="break_down")
    page = client.get("/jobs/task?name=remind").text
    assert _names(page) == ["one", "two"]
    assert "No runs yet." in page
    page = client.get("/jobs/task?name=break_down").text
    assert "<code>word=…</code>" in page
    assert "1 attempt</dd>" in page
    assert 'class="cell dead"' in page
    assert 'href="/jobs/runs?task=break_down"' in page


@pytest.mark.parametrize("path", ["definition", "task"])
def test_an_unknown_name_is_404_and_a_missing_one_400(client: FlaskClient, path: str) -> None:
    answer = client.get(f"/jobs/{path}?name=nobody")
    assert answer.status_code == 404
    assert f"There is no {path} of that name" in answer.text
    assert client.get(f"/jobs/{path}").status_code == 400


def test_a_name_with_any_characters_has_a_page(
    client: FlaskClient, define: Callable[..., int]
) -> None:
    name = "a/../b?c=d&e#f %2F ☃"
    define(name)
    (link,) = re.findall(r'<h3><a href="([^"]*)"', client.get("/jobs/definitions").text)
    answer = client.get(link)
    assert answer.status_code == 200
    assert "☃ · Jobs</title>" in answer.text


def test_names_break_between_words() -> None:
    assert breakable("send_mail:a.b") == "send_<wbr>mail:<wbr>a.<wbr>b"
    assert breakable("a__b") == "a__<wbr>b"
    assert breakable("<b>_\u202e") == "&lt;b&gt;_<wbr>\ufffd"
    assert breakable("") == ""


def test_a_part_is_100_percent_only_if_it_is_all() -> None:
    assert [percent(part) for part in (1.0, 0.9999, 0.5, 0.0)] == ["100 %", "99.9 %", "50 %", "0 %"]


def test_the_form_for_other_arguments_is_one_click_away(
    client: FlaskClient, define: Callable[..., int], rights: set[str]
) -> None:
    define("nightly")
    definition, task = "/jobs/definition?name=nightly", "/jobs/task?name=remind"
    assert 'href="/jobs/run?name=nightly">Run with other arguments' in client.get(definition).text
    assert 'href="/jobs/run?name=remind">Run with arguments' in client.get(task).text
    assert client.get("/jobs/run?name=nightly").status_code == 200
    rights.discard("act")
    for url in (definition, task):
        assert "/jobs/run?name=" not in client.get(url).text
