"""Every form of every page, found by following links: who may send it, and from where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from flask import Flask
from flask_wtf import CSRFProtect  # type: ignore[import-untyped]
from sqlalchemy import insert

from flask_cronjobs import CronJobs
from flask_cronjobs.insights.run_filters import FILTERS
from flask_cronjobs.models import JobPause, JobRun
from flask_cronjobs.web.guard import RIGHTS
from tests.marks import on_both

from .conftest import NOW, OWN, Contents, Pages
from .crawl import Crawl, Form

#: Headers that show that another site sent the request.
ELSEWHERE: list[dict[str, str]] = [
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    {"Origin": "http://elsewhere.example"},
    {"Origin": "http://localhost.elsewhere.example"},
    {"Origin": "http://localhost@elsewhere.example"},
    {"Origin": "http://localhost:8000"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://["},
    {"Origin": "http://", "Host": ""},
    {"Origin": "file://localhost"},
    {"Referer": "http://localhost/jobs/"},
]
#: An endpoint, and its action if it has several.
Action: TypeAlias = "tuple[str, str | None]"
_OF_FILTERS = {filter_.name for filter_ in FILTERS}


@pytest.fixture
def jobs(jobs: CronJobs, app: Flask) -> CronJobs:
    """The extension beside the protection by tokens that most apps have."""
    CSRFProtect(app)
    return jobs


def _put_back(pages: Pages, rows: Contents) -> None:
    with pages.app.app_context():
        tables = JobRun.metadata.sorted_tables
        for table in reversed(tables):
            pages.db.session.execute(table.delete())
        for table in tables:
            if rows[table.name]:
                pages.db.session.execute(insert(table), rows[table.name])
        pages.db.session.commit()


@pytest.fixture
def filled(pages: Pages) -> Pages:
    """The pages of an app with so many kinds of rows that each form is on one of them."""
    with pages.app.app_context():
        pages.jobs.tick()
        with (
            suppress(ZeroDivisionError),
            pages.jobs.batch("b", then=pages.jobs.get("remind")),
        ):
            pages.jobs.get("break_down").enqueue()
            raise ZeroDivisionError
        pages.db.session.commit()
        pages.jobs.tick()
    pages.define("paused", paused_at=NOW)
    pages.define("gone", job_type="gone")
    pages.add("queued", run_at=NOW + timedelta(days=1))
    pages.add("running")
    dead = [pages.add("dead", fingerprint="f1", max_attempts=1) for _ in range(2)]
    pages.step(dead[0], "totals")
    strict = {"concurrency_key": "account:1", "concurrency_limit": 1, "strict": True}
    pages.add("dead", fingerprint="f2", **strict)
    pages.add("queued", gate="order", **strict)
    for run_id in dead:
        pages.failure(run_id, 1)
    pages.add("succeeded")
    pages.effect("charge:1", state="in_doubt")
    pages.insert(JobPause(kind="queue", name="slow", paused_by="ada"))
    return pages


class Forms(Crawl):
    """The forms of all pages, one of each kind on each kind of page."""

    def __init__(self, pages: Pages) -> None:
        super().__init__(pages.client, "/jobs/")
        self._urls = pages.app.url_map.bind("localhost")
        self.kinds = {self._kind(form): form for form in reversed(self.forms)}.values()

    def action(self, form: Form) -> Action:
        """Return the endpoint and the action of *form*."""
        endpoint, values = self._urls.match(form.action, "POST")
        return endpoint, values.get("act")

    def readers(self) -> set[str]:
        """Return the endpoints of the pages."""
        return {self._page(url) for url in self.pages}

    def _page(self, url: str) -> str:
        endpoint: str = self._urls.match(url.partition("?")[0], "GET")[0]
        return endpoint

    def _kind(self, form: Form) -> object:
        names = {name for name, _ in form.fields} - _OF_FILTERS
        values = {pair for pair in form.fields if pair[0] in ("do", "again")}
        return self._page(form.page), self.action(form), frozenset(names), frozenset(values)


@pytest.fixture
def forms(filled: Pages) -> Forms:
    """Return all forms."""
    return Forms(filled)


def _actions(app: Flask) -> Iterator[Action]:
    """Return everything that can be posted to, except the tick by URL."""
    for rule in app.url_map.iter_rules():
        if RIGHTS.get(rule.endpoint) == "act":
            acts = re.search(r"<any\((.*)\):act>", rule.rule)
            for act in acts[1].split(", ") if acts else [None]:
                yield rule.endpoint, act


def _refused(pages: Pages, form: Form, status: int, headers: dict[str, str], **token: Any) -> None:
    answer = pages.client.post(form.action, data=form.sent(**token), headers=headers)
    assert answer.status_code == status, (form, headers, answer.text)


def test_each_form_is_refused_from_elsewhere_and_without_its_token(
    filled: Pages, forms: Forms
) -> None:
    """It then changes nothing; nor does it if the user may not act."""
    stranger = _token(filled.app.test_client().get("/jobs/workers").text)
    before = filled.contents()
    for form in forms.kinds:
        token = form.sent()["csrf_token"][0]
        for wrong in (None, "", token[::-1], stranger):
            _refused(filled, form, 400, OWN, csrf_token=wrong)
        for headers in ELSEWHERE:
            _refused(filled, form, 403, headers)
        filled.rights.discard("act")
        _refused(filled, form, 403, OWN)
        filled.rights.add("act")
        assert filled.contents() == before, form


def _token(page: str) -> str:
    match = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert match
    return match[1]


@on_both
def test_each_action_has_a_form_that_does_what_it_is_for(filled: Pages, forms: Forms) -> None:
    assert {forms.action(form) for form in forms.kinds} == set(_actions(filled.app))
    pages = {name for name, right in RIGHTS.items() if right in ("read", "form")}
    assert pages - forms.readers() == {"cronjobs.metrics"}
    before = filled.contents()
    for form in forms.kinds:
        answer = filled.client.post(form.action, data=form.sent(), headers=OWN)
        assert answer.status_code == 303, (form, answer.text)
        assert "Nothing was changed" not in filled.get(answer.location).text, form
        after = filled.contents()
        assert after != before, form
        operations = [row for row in after["job_operations"] if row not in before["job_operations"]]
        assert {row["actor"] for row in operations} == {"ada"}, form
        _put_back(filled, before)
