"""Text from outside stays text, in every field that a page shows."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import flask_cronjobs.web
from flask_cronjobs.models import JobBatch, JobOperation

from .conftest import Pages

#: Characters that change how their neighbors are shown.
ODD = "\u202e\x1b\x07\u2066\x9b"
EVIL = (
    "\"'><img src=x onerror=alert(1)><script>alert(2)</script>{{191*193}}</title></textarea>" + ODD
)


class Elements(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _check(page: str) -> Elements:
    elements = Elements(page)
    assert not set(ODD) & set("".join(elements.text))
    for tag, attributes in elements.found:
        # A form sends the text back unchanged.
        assert tag == "input" or not set(ODD) & set("".join(filter(None, attributes.values())))
        assert tag not in ("img", "style")
        assert tag != "script" or set(attributes) == {"src", "defer"}
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("href", "src", "action"):
            assert (attributes.get(name) or "/").startswith(("/", "#", "?"))
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    return elements


@pytest.fixture
def hostile(pages: Pages) -> list[int]:
    """A run of each status, a definition, an effect and a tick, with evil in every text."""
    definition = pages.define(EVIL, job_type=EVIL, schedule=EVIL, timezone=EVIL, queue=EVIL)
    pages.tick(5, worker=EVIL, host=EVIL)
    ids = []
    for status in ("queued", "running", "succeeded", "failed", "dead", "cancelled", "skipped"):
        texts = ("job_type", "queue", "last_error", "error_type", "progress_message")
        values: dict[str, Any] = dict.fromkeys((*texts, "concurrency_key"), EVIL)
        values |= {"payload": {EVIL: [EVIL, {EVIL: EVIL}]}, "result": {EVIL: EVIL}, "progress": 0.5}
        values |= {"idempotency_key": f"{EVIL}{status}", "concurrency_limit": 1}
        if status == "running":
            values |= {"locked_by": EVIL, "concurrency_share": 1}
        if status == "succeeded":
            values |= {"definition_id": definition}
        ids.append(pages.add(status, attempts=1, **values))
    for run_id in ids:
        failure = dict.fromkeys(("worker", "error_type", "error", "stack"), EVIL)
        pages.failure(run_id, 1, **failure)
    pages.effect(EVIL, state="in_doubt")
    pages.insert(JobBatch(key=EVIL), JobOperation(what=EVIL, target=EVIL, actor=EVIL))
    return ids


def test_rows_stay_text(pages: Pages, hostile: list[int]) -> None:
    name = quote(EVIL)
    lists = ("", "runs", "workers", f"definition?name={name}", f"runs?task={name}")
    others = (f"runs/bulk?do=retry&task={name}", *(f"runs/{run_id}" for run_id in hostile))
    for path in (*lists, *others):
        elements = _check(pages.get(f"/jobs/{path}").text)
        assert "<script>alert(2)</script>" in "".join(elements.text)
        assert "36863" not in "".join(elements.text).replace("{{191*193}}", "")


def test_rows_stay_text_in_an_app_that_does_not_escape(pages: Pages, hostile: list[int]) -> None:
    pages.app.jinja_env.autoescape = False
    test_rows_stay_text(pages, hostile)


PARAMETERS = [
    "status", "task", "queue", "error", "error_type", "definition", "older", "newer", "before",
    "limit", "overdue", "all", "sort", "page", "name", "do", "batch", "key", "q",
]  # fmt: skip


@pytest.mark.parametrize("path", ["", "workers", "runs", "definition"])
def test_parameters_stay_text(pages: Pages, hostile: list[int], path: str) -> None:
    for name in PARAMETERS:
        answer = pages.get(f"/jobs/{path}?{name}={quote(EVIL)}")
        assert answer.status_code in (200, 400), name
        _check(answer.text)


def test_actions_say_hostile_names_as_text(pages: Pages, hostile: list[int]) -> None:
    fields = [values for tag, values in _check(pages.text()).found if tag == "input"]
    assert EVIL in [field["value"] for field in fields if field["name"] == "name"]
    for name in (EVIL, f"{EVIL}?"):
        for verb in ("pause", "resume"):
            _check(pages.post(f"/jobs/{verb}", what=f"definition:{name}").text)
            _check(pages.get("/jobs/").text)
        _check(pages.post("/jobs/definitions/run", name=name).text)
        _check(pages.get("/jobs/").text)
    pages.post("/jobs/pause", what=f"queue:{EVIL.removesuffix(ODD)}")
    assert pages.contents()["job_pauses"][0]["name"] == EVIL.removesuffix(ODD)
    pages.post("/jobs/dead/retry", task=EVIL, error_type=EVIL)
    _check(pages.get("/jobs/").text)
    pages.post("/jobs/effects/done", key=EVIL)
    _check(pages.get("/jobs/").text)


def test_the_templates_leave_escaping_alone() -> None:
    folder = Path(flask_cronjobs.web.__file__).parent / "templates"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert path.suffix == ".html"
        for word in ("|safe", "| safe", "Markup", "autoescape", "|tojson"):
            assert word not in path.read_text()


def test_pages_do_not_repeat_long_parameters(pages: Pages, hostile: list[int]) -> None:
    long = "A" * 2000
    for path in ("", "runs", "workers"):
        usual = len(pages.text(path))
        for name in ("name", "sort", "page", "back", "q", "other", long):
            answer = pages.get(f"/jobs/{path}?{name}={long}")
            assert answer.status_code in (200, 400)
            assert len(answer.text) < usual + 1000, (path, name)
