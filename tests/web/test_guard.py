"""The rights that each route needs: who may see and who may act."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pytest
from flask import Flask, abort, redirect, request
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import Rule

from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobBatch
from flask_cronjobs.web.guard import CLOSED, RIGHTS, ROUTES
from tests.tables import make_tables

from .conftest import OWN, Pages

OPEN = {"cronjobs.health", "cronjobs.static"}


def _rules(app: Flask) -> Iterator[tuple[Rule, str]]:
    """Yield every rule under the prefix with each path that it matches, but only one id."""
    values = {"run_id": 1, "filename": "pages.css"}
    adapter = app.url_map.bind("localhost")
    for rule in app.url_map.iter_rules():
        if rule.rule.startswith("/jobs"):
            arguments = {name: values[name] for name in rule.arguments - {"act"}}
            # Values for routes that have no variable.
            needed = {"name": "remind", "do": "cancel", "key": "weekly"}
            acts = re.search(r"<any\((.*)\):act>", rule.rule)
            for act in acts[1].split(", ") if acts else [None]:
                yield rule, adapter.build(rule.endpoint, arguments | needed | {"act": act})


def _make(app: Flask, db: SQLAlchemy, **options: Any) -> FlaskClient:
    app.testing = False
    CronJobs(app, **options)
    make_tables(app, db)
    return app.test_client()


def _answers(app: Flask, client: FlaskClient, *methods: str) -> dict[str, set[int]]:
    """Return the statuses of all but the open routes for those of *methods* that they have."""
    statuses: dict[str, set[int]] = {}
    for rule, path in _rules(app):
        if rule.endpoint not in OPEN:
            for method in set(methods) & (rule.methods or set()):
                status = client.open(path, method=method, headers=OWN).status_code
                statuses.setdefault(rule.endpoint, set()).add(status)
    return statuses


METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")


def test_every_rule_of_the_url_map_has_a_right(pages: Pages) -> None:
    endpoints = {rule.endpoint for rule, _ in _rules(pages.app)}
    assert endpoints == set(RIGHTS)
    assert len(endpoints) == len(ROUTES) + 1


@pytest.mark.parametrize("options", [{}, {"authorize": lambda action: action == "act"}])
def test_closed_without_authorize_and_to_whom_it_refuses_to_read(
    app: Flask, db: SQLAlchemy, options: dict[str, Any]
) -> None:
    client = _make(app, db, **options)
    refused = _answers(app, client, *METHODS)
    assert refused.pop("cronjobs.tick") == {404}
    assert all(statuses == {403} for statuses in refused.values())
    assert client.get("/jobs/health").status_code == 503
    with client.get("/jobs/cronjobs-static/pages.css") as answer:
        assert answer.status_code == 200


def test_the_log_says_once_what_to_set(
    app: Flask, db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    client = _make(app, db)
    client.get("/jobs/")
    client.get("/jobs/")
    assert [line for line in caplog.messages if "authorize=" in line] == [CLOSED]


def test_debug_mode_asks_authorize_if_there_is_one(app: Flask, db: SQLAlchemy) -> None:
    app.debug = True
    assert _make(app, db, authorize=lambda action: False).get("/jobs/").status_code == 403


def test_a_reader_reads_and_cannot_act(pages: Pages) -> None:
    pages.rights.discard("act")
    pages.add("dead")
    pages.define("remind")
    pages.insert(JobBatch(key="weekly"))
    before = pages.contents()
    expected = {"read": {200}, "form": {403}, "act": {403, 405}, "token": {404}}
    for endpoint, statuses in _answers(pages.app, pages.client, "GET", "POST").items():
        assert statuses == expected[RIGHTS[endpoint]], endpoint
    assert pages.contents() == before
    for path in ("", "runs/1", "definition?name=remind", "runs/bulk?do=discard&status=dead"):
        pages.shows(path, hides=["<button"])
    pages.shows("runs?status=dead", hides=["Discard"])


def test_a_get_changes_nothing(pages: Pages) -> None:
    pages.add("dead")
    pages.add("queued")
    pages.define()
    pages.tick(5)
    before = pages.contents()
    for _, path in _rules(pages.app):
        for method in ("GET", "HEAD", "OPTIONS"):
            pages.client.open(path, method=method).close()
    assert pages.contents() == before


@pytest.mark.parametrize(
    ("headers", "base", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, "http://localhost", 303),
        ({"Origin": "http://localhost"}, "http://localhost", 303),
        ({"Origin": "HTTP://LOCALHOST"}, "http://localhost", 303),
        # TLS ends at a proxy that sends no header.
        ({"Origin": "https://localhost"}, "http://localhost", 303),
        ({"Origin": "https://localhost"}, "https://localhost", 303),
        # An attacker on the network may have written a page that was sent without TLS.
        ({"Origin": "http://localhost"}, "https://localhost", 403),
    ],
)
def test_a_post_from_our_own_page_passes(
    pages: Pages, headers: dict[str, str], base: str, status: int
) -> None:
    pages.add("dead")
    answer = pages.client.post("/jobs/runs/1/retry", headers=headers, base_url=base)
    assert answer.status_code == status


def test_a_route_without_a_declared_right_needs_the_right_to_act(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(RIGHTS, "cronjobs.status")
    assert pages.get("/jobs/", headers=OWN).status_code == 200
    pages.rights.discard("act")
    assert pages.get("/jobs/", headers=OWN).status_code == 403


def test_who_may_not_read_sees_no_more_than_the_refusal(pages: Pages) -> None:
    assert 'href="/jobs/runs"' in pages.get("/jobs/runs/999").text
    pages.rights.clear()
    for answer in (pages.get("/jobs/"), pages.get("/jobs/runs/999")):
        assert answer.status_code == 403
        assert 'href="/jobs/runs"' not in answer.text


@pytest.mark.parametrize("code", [400, 429])
def test_who_is_refused_before_the_guard_sees_no_more_than_that(pages: Pages, code: int) -> None:
    pages.app.before_request(lambda: abort(code))
    answer = pages.get("/jobs/")
    assert answer.status_code == code
    assert 'href="/jobs/' not in answer.text.replace("/jobs/cronjobs-static/", "")


def test_style_sheet_is_found_if_the_pages_are_at_the_root(app: Flask, db: SQLAlchemy) -> None:
    """The app's own static files are at /static, and come first."""
    app.config["CRONJOBS_URL_PREFIX"] = "/"
    client = _make(app, db, authorize=lambda action: True)
    page = client.get("/runs").text
    sheet = page.partition('rel="stylesheet" href="')[2].partition("?")[0]
    with client.get(sheet) as answer:
        assert (answer.status_code, answer.mimetype) == (200, "text/css")


def test_works_behind_a_proxy_and_its_prefix(pages: Pages) -> None:
    pages.app.wsgi_app = ProxyFix(pages.app.wsgi_app, x_host=1, x_prefix=1)  # type: ignore[method-assign]
    pages.add("dead")
    forwarded = {"X-Forwarded-Host": "ops.example", "X-Forwarded-Prefix": "/shop"}
    page = pages.get("/jobs/runs/1", headers=forwarded).text
    assert 'action="/shop/jobs/runs/1/retry"' in page
    assert 'href="/shop/jobs/cronjobs-static/pages.css' in page
    own = {"Origin": "https://ops.example"}
    answer = pages.client.post("/jobs/runs/1/retry", headers=forwarded | own)
    assert answer.status_code == 303
    assert answer.location == "/shop/jobs/runs/1#message"
    assert "Path=/shop/jobs/" in answer.headers["Set-Cookie"]


def _raise(action: str) -> bool:
    raise RuntimeError("the directory is down: secret")


async def _async_reader(action: str) -> bool:
    return action == "read"


class Role(IntEnum):
    """A role, which an app may return by mistake instead of a bool."""

    ADMIN = 1


class Unwilling:
    """An object whose truth value raises."""

    def __bool__(self) -> bool:
        raise RuntimeError("secret")


RAISING = (_raise, lambda action: Unwilling())


@pytest.mark.parametrize(
    ("authorize", "status"),
    [
        *((raising, 500) for raising in RAISING),
        (lambda action: "yes", 500),
        (lambda action: ("no", 403), 500),
        (lambda action: None, 403),
        (lambda action: 0, 403),
        (lambda action: 1, 500),
        (lambda action: Role.ADMIN, 500),
        (lambda action: 403, 500),
        (lambda action: -1, 500),
        (lambda action: 1.0, 500),
        (lambda action: [], 403),
        (lambda action: abort(401), 401),
        (lambda action: abort(redirect("/login", 302)), 302),
        (lambda action: redirect("/login", 302), 302),
    ],
)
def test_whatever_authorize_does_the_pages_never_open_by_mistake(
    app: Flask, db: SQLAlchemy, caplog: pytest.LogCaptureFixture, authorize: Any, status: int
) -> None:
    answer = _make(app, db, authorize=authorize).get("/jobs/")
    assert answer.status_code == status
    assert "secret" not in answer.text
    warned = "Return True or False, or a response; or abort()." in caplog.text
    assert warned == (status == 500 and authorize not in RAISING)


def test_an_async_authorize_is_awaited_and_opens_nothing_if_that_is_not_possible(
    app: Flask, db: SQLAlchemy, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = _make(app, db, authorize=_async_reader)
    assert client.get("/jobs/").status_code == 200
    assert client.post("/jobs/runs/1/retry", headers=OWN).status_code == 403
    monkeypatch.setitem(sys.modules, "asgiref.sync", None)  # As without Flask's async extra.
    assert client.get("/jobs/").status_code == 500


def test_every_page_carries_the_headers(pages: Pages) -> None:
    """This includes the refusal of an action that is not a POST, or comes from another site."""
    for rule, path in _rules(pages.app):
        right = RIGHTS[rule.endpoint]
        assert ("POST" in (rule.methods or ())) is (right in ("act", "token"))
        if right == "token":  # Without its token, it answers like a missing route.
            continue
        for method in ("GET", "POST") if right == "act" else ("GET",):
            with pages.client.open(path, method=method) as answer:
                headers = answer.headers
            assert right != "act" or answer.status_code == {"GET": 405, "POST": 403}[method]
            assert headers.get("Allow") == ("POST" if answer.status_code == 405 else None)
            assert headers["Content-Security-Policy"] == (
                "default-src 'none'; style-src 'self'; img-src 'self' data:; script-src 'self'; "
                "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
            )
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "same-origin"
            cached = "private, max-age=3600" if rule.endpoint == "cronjobs.static" else "no-store"
            assert headers["Cache-Control"] == cached


def test_a_file_that_is_not_there_yet_is_not_cached_as_missing(pages: Pages) -> None:
    with pages.get("/jobs/cronjobs-static/next.css") as answer:
        assert answer.status_code == 404
        assert answer.headers["Cache-Control"] == "no-store"


FETCHES: list[tuple[str | None, str | None, int]] = [
    ("no-cors", "image", 403),
    ("cors", "empty", 403),
    ("no-cors", "script", 403),
    ("navigate", "iframe", 403),
    ("navigate", "document", 200),
    (None, None, 200),  # Old browsers and scrapers send no such header.
]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_can_link_to_a_page_and_cannot_fetch_it(pages: Pages, site: str) -> None:
    """A page of another subdomain could measure how long a search takes."""
    for mode, dest, status in FETCHES:
        headers = {"Sec-Fetch-Site": site}
        if mode is not None and dest is not None:
            headers |= {"Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        answer = pages.get("/jobs/runs?status=dead", headers=headers)
        assert answer.status_code == status, (mode, dest)
        assert pages.get("/jobs/health", headers=headers).status_code == 503
        for own in ("same-origin", "none"):
            own_headers = headers | {"Sec-Fetch-Site": own}
            assert pages.get("/jobs/", headers=own_headers).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none", None])
def test_another_site_cannot_open_a_search(pages: Pages, site: str | None) -> None:
    """Another site could measure when the page arrives, even in a window that it has opened."""
    headers = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    headers |= {"Sec-Fetch-Site": site} if site else {}
    status = 403 if site in ("cross-site", "same-site") else 200
    for path in ("runs?q=ada", "runs?error=key-of-ada", "runs/bulk?do=retry&q=ada"):
        assert pages.get(f"/jobs/{path}", headers=headers).status_code == status, path


def test_a_refusal_does_not_repeat_a_megabyte(
    pages: Pages, caplog: pytest.LogCaptureFixture
) -> None:
    @pages.app.before_request
    def refuse() -> None:
        if request.args.get("q"):
            abort(400, request.args["q"])

    answer = pages.get("/jobs/runs", query_string={"q": "x" * 60_000})
    assert answer.status_code == 400
    assert answer.text.count("x") < 1_000
    long = {"what": f"definition:{chr(0x202E) * 488}"}
    answer = pages.client.post("/jobs/pause", data=long, headers=OWN)
    assert answer.status_code == 404
    assert len(answer.text) < 3_000
