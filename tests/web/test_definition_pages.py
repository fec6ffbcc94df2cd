"""The pages of all definitions, of one definition and of one task; pauses of tasks and queues."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from flask_cronjobs.web.format import breakable

from .conftest import NOW, Pages


def _names(page: str) -> list[str]:
    """The definitions of a page, in their order."""
    return re.findall(r'<h3><a href="/jobs/definition\?name=([^"]*)"', page)


def test_definitions_come_in_pages_both_ways(pages: Pages) -> None:
    pages.shows("definitions", "No definitions yet")
    for number in range(120):
        pages.define(f"d{number:03}")
    overview = pages.shows("", '<a href="/jobs/definitions">All 120 definitions</a>')
    assert len(_names(overview)) == 12
    first = pages.shows("definitions", "120 definitions, page 1 of 3", hides=["Previous"])
    assert _names(first) == [f"d{number:03}" for number in range(50)]
    second = pages.shows(
        "definitions?page=2&sort=name&search=d",
        'rel="prev" href="/jobs/definitions?page=1&amp;search=d&amp;sort=name"',
        'rel="next" href="/jobs/definitions?page=3&amp;search=d&amp;sort=name"',
    )
    assert _names(second)[0] == "d050"
    last = pages.text("definitions?page=9")
    assert _names(last)[-1] == "d119"
    assert "Next" not in last.partition("<nav class")[2]


def test_what_needs_a_person_is_first_and_says_why(pages: Pages) -> None:
    pages.define("a")
    pages.add("dead", definition_id=pages.define("b"))
    late = pages.define("c", next_run_at=NOW - timedelta(hours=1))
    pages.add("skipped", definition_id=late, error_type="Missed")
    for path in ("", "definitions"):
        page = pages.text(path)
        assert _names(page) == ["c", "b", "a"]
        words = ["missed slots", "late", "dead runs"]
        assert re.findall(r'class="status (?:bad|warn)">([^<]*)', page) == words
    assert _names(pages.text("definitions?state=late")) == ["c"]
    pages.shows("definition?name=c", 'id="missed"', "Missed slots")
    pages.shows("definition?name=b", hides=["Missed slots"])


def test_the_form_keeps_what_was_asked_for(pages: Pages) -> None:
    pages.define()
    pages.shows(
        'definitions?search=x"y&state=paused&sort=next',
        *('name="search" value="x&#34;y"', '<option value="paused" selected>'),
        *('<option value="next" selected>', "No definitions match"),
        hides=["No definitions yet"],
    )


def test_a_definition_tells_its_schedule_runs_and_slots(pages: Pages) -> None:
    definition = pages.define("nightly", payload={"token": "x", "days": 3})
    for hours in range(1, 5):
        slot = NOW - timedelta(hours=hours)
        times = {"run_at": slot, "started_at": slot + timedelta(seconds=3)}
        times["finished_at"] = slot + timedelta(seconds=3 + hours)
        status = "dead" if hours == 4 else "succeeded"
        pages.add(status, definition_id=definition, scheduled_for=slot, **times)
    page = pages.shows(
        "definition?name=nightly",
        *("<title>nightly · Jobs</title>", "Every day at 07:00, in the zone Europe/Berlin."),
        *("3.0 s</td>", "2.0 s</td>", "&#34;token&#34;: &#34;***&#34;"),
        *('href="/jobs/task?name=remind"', 'href="/jobs/runs?definition=nightly"'),
        *("10 attempts, exponential delays from 10 s to 1 h", "icon-warn.svg"),
    )
    slots = page.partition('<ol class="slots">')[2].partition("</ol>")[0]
    assert slots.count("07:00</time>") == 3
    pages.hide_payloads()
    pages.shows("definition?name=nightly", "Payloads are hidden", hides=["&#34;days"])


def test_a_definition_says_what_is_wrong(pages: Pages) -> None:
    # By the clock of now, not of when the tests were collected.
    ago = datetime.now(timezone.utc) - timedelta(minutes=2)
    wrong: list[tuple[dict[str, Any], str, str, str]] = [
        ({}, "good", "No runs yet", "07:00</time>"),
        ({"paused_at": NOW}, "idle", "It is paused", "paused</span>"),
        ({"schedule": "61 * * * *"}, "warn", "the minute field says", "the minute field says"),
        ({"timezone": "Mars/Olympus"}, "warn", "Mars/Olympus", "Mars/Olympus"),
        ({"job_type": "gone"}, "warn", "does not declare it. Other code may", "no task gone"),
        ({"origin": "code"}, "warn", "no longer declares it", "no longer declares it"),
        ({"next_run_at": ago}, "good", "no tick has recorded it yet", "2 min late"),
    ]
    for number, (values, icon, said, listed) in enumerate(wrong):
        pages.define(f"d{number}", **({"origin": "database"} | values))
        pages.shows(f"definition?name=d{number}", said, f"icon-{icon}.svg")
        pages.shows(f"definitions?search=d{number}", listed)


def test_a_task_tells_its_code_definitions_and_runs(pages: Pages) -> None:
    pages.define("one")
    pages.define("two")
    pages.add("dead", job_type="break_down")
    pages.jobs.task(name="book", concurrency_key="a", order="strict")(lambda: None)
    page = pages.shows("task?name=remind", "No runs yet.", hides=["strict</a>"])
    assert _names(page) == ["one", "two"]
    pages.shows(
        "task?name=break_down",
        *("<code>word=…</code>", "1 attempt</dd>", 'class="cell dead"'),
        'href="/jobs/runs?task=break_down"',
    )
    pages.shows("task?name=book", '<a href="/jobs/order">strict</a>')


@pytest.mark.parametrize("path", ["definition", "task", "batch"])
def test_an_unknown_name_is_404_and_a_missing_one_400(pages: Pages, path: str) -> None:
    answer = pages.get(f"/jobs/{path}?name=nobody&key=nobody")
    assert answer.status_code == 404
    assert f"There is no {path} of that " in answer.text
    assert pages.get(f"/jobs/{path}").status_code == 400


def test_a_name_with_any_characters_has_a_page(pages: Pages) -> None:
    pages.define("a/../b?c=d&e#f %2F ☃")
    (link,) = re.findall(r'<h3><a href="/jobs/([^"]*)"', pages.text("definitions"))
    pages.shows(link, "☃ · Jobs</title>")


def test_names_break_between_words() -> None:
    assert breakable("send_mail:a.b") == "send_<wbr>mail:<wbr>a.<wbr>b"
    assert breakable("a__b") == "a__<wbr>b"
    assert breakable("<b>_\u202e") == "&lt;b&gt;_<wbr>\ufffd"
    assert breakable("") == ""


# Pauses of tasks and queues


def test_pause_and_resume(pages: Pages) -> None:
    """Nothing is chosen before somebody chooses: a click too many pauses no queue."""
    pages.tick(5)
    form = pages.text().partition('<select name="what" required>')[2]
    assert form.lstrip().startswith('<option value="">choose one</option>')
    assert '<option value="task:remind">remind</option>' in form
    assert pages.post("/jobs/pause", what="task:remind").status_code == 303
    said = "The task remind is paused. Its runs wait until it is resumed."
    page = pages.shows("", said, "the task remind is paused", "by ada")
    assert 'value="task:remind"><button>Resume' in re.sub(r"\n *", "", page)
    pages.rights.discard("act")
    pages.shows("", "the task remind is paused", hides=["<button>", "Pause a task"])
    pages.rights.add("act")
    pages.shows("task?name=remind", "by ada: its runs wait until", ">Resume<")
    for said in ("is resumed.", "was not paused."):
        pages.post("/jobs/resume", what="task:remind")
        pages.shows("", f"The task remind {said}")
    answer = pages.post("/jobs/pause", what="task:remind", back="task?name=remind")
    assert answer.location == "/jobs/task?name=remind#message"


def test_names_that_are_nothing_are_refused(pages: Pages) -> None:
    for what in ("task:nobody", "definition:remind", "queue:", ""):
        pages.post("/jobs/pause", what=what)
    assert pages.data("")["verdict"]["pauses"] == []


@pytest.mark.parametrize("what", ["task:remind", "queue:default"])
def test_run_that_waits_for_a_pause_says_so_and_is_not_late(pages: Pages, what: str) -> None:
    run_id, failed = pages.add("queued"), pages.add("failed")
    pages.shows(f"runs/{run_id}", "It waits for a worker: ")
    pages.shows("runs", "min late")
    pages.post("/jobs/pause", what=what)
    kind, _, name = what.partition(":")
    waits = f"It waits until the {kind} {name} is resumed: ada paused it just now."
    for path in (f"runs/{run_id}", f"runs/{failed}"):
        page = pages.shows(path, waits, hides=[" late", "The next tick runs it"])
        assert f'name="what" value="{what}"><button>Resume the {kind}' in re.sub(r"\n *", "", page)
    assert pages.shows("runs", hides=[" late"]).count(">paused<") == 2
