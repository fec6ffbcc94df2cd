"""A page shows all its times in one zone, which the user may change."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest

from .conftest import NOW, OWN, Pages


def _zone(page: str) -> str:
    found = re.search(r'<p class="zones">Times in (\S+)', page)
    assert found
    return found[1]


def _offered(page: str) -> list[str]:
    return re.findall(r">Show (?:the schedule’s zone|UTC)<", page)  # noqa: RUF001


def test_a_page_of_one_schedules_zone_is_in_that_zone(pages: Pages) -> None:
    at = datetime(2026, 1, 20, 22, 0, tzinfo=timezone.utc)
    made = pages.define(timezone="Asia/Tokyo")
    run = pages.add("succeeded", definition_id=made, scheduled_for=at)
    for path in ("", "definitions", "definition?name=remind", "runs", f"runs/{run}"):
        assert _zone(pages.text(path)) == "Asia/Tokyo", path
    assert re.search(r"Wed 21 Jan( 2026)? 07:00</time>", pages.text(f"runs/{run}"))


@pytest.mark.parametrize("other", ["Europe/Berlin", "Mars/Olympus"])
def test_a_page_of_several_zones_is_in_that_of_the_app(pages: Pages, other: str) -> None:
    """One that does not exist is that of no page."""
    pages.define("a", timezone="Asia/Tokyo")
    pages.define("b", timezone=other)
    assert _zone(pages.text("definition?name=b")) == (other if "Berlin" in other else "UTC")
    zone = "UTC" if "Berlin" in other else "Asia/Tokyo"
    assert _zone(pages.text("definitions")) == zone


def test_the_choice_is_kept_for_all_pages(pages: Pages) -> None:
    pages.add("succeeded", definition_id=pages.define(timezone="Asia/Tokyo"))
    link = '<a href="?status=succeeded&amp;zone=schedule">'
    page = pages.shows("runs?zone=America/New_York&status=succeeded", link)
    assert _zone(page) == "America/New_York"
    assert len(_offered(page)) == 2
    assert _zone(pages.text()) == "America/New_York"
    assert _zone(pages.text("?zone=UTC")) == "UTC"
    assert len(_offered(pages.text())) == 1
    assert _zone(pages.text("?zone=schedule")) == "Asia/Tokyo"
    assert _zone(pages.text()) == "Asia/Tokyo"


def test_the_cookie_is_for_these_pages_alone_also_if_the_app_adds_to_urls(pages: Pages) -> None:
    @pages.app.url_defaults
    def add_language(endpoint: str, values: dict[str, object]) -> None:
        values.setdefault("lang", "de")

    (cookie,) = pages.get("/jobs/?zone=UTC").headers.getlist("Set-Cookie")
    assert cookie.startswith("cronjobs_zone=UTC; ")
    for part in ("Path=/jobs/;", "HttpOnly", "SameSite=Lax"):
        assert part in cookie
    assert "Set-Cookie" not in pages.get("/jobs/").headers


def test_a_cookie_that_is_no_zone_is_ignored(pages: Pages) -> None:
    assert pages.get("/jobs/?zone=Mars/Olympus").status_code == 400
    for zone in ("Mars/Olympus", "../../etc/passwd", "", "schedule; x=1"):
        pages.client.set_cookie("cronjobs_zone", zone, path="/jobs/")
        assert _zone(pages.text()) == "UTC"


def test_the_links_keep_the_query(pages: Pages) -> None:
    page = pages.text("runs?task=a%26b&_external=1&_anchor=x&zone=Asia/Tokyo")
    assert '<a href="?task=a%26b&amp;_external=1&amp;_anchor=x&amp;zone=UTC">Show UTC' in page


def test_seconds_are_shown_unless_it_is_a_slot(pages: Pages) -> None:
    slot = NOW.replace(hour=7, minute=0, second=0, microsecond=0)
    ended = slot.replace(minute=1, second=9)
    run = pages.add("succeeded", scheduled_for=slot, started_at=slot.replace(second=2), run_at=slot,
              finished_at=ended)  # fmt: skip
    page = pages.get(f"/jobs/runs/{run}").text
    assert " 07:00</time>" in page
    assert " 07:00:02</time>" in page
    assert " 07:01:09</time>" in page
    assert "1 min 7 s, waited 2.0 s" in page
    assert "waited 2.0 s" in pages.get("/jobs/runs").text


def test_the_answer_to_a_wrong_form_offers_no_zone(pages: Pages) -> None:
    data = {"name": "remind", "payload": "{no"}
    answer = pages.client.post("/jobs/definitions/run", data=data, headers=OWN)
    assert answer.status_code == 400
    assert "zone" not in answer.text
