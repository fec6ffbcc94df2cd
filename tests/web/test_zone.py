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
    run = pages.add(
        "succeeded", definition_id=pages.define(timezone="Asia/Tokyo"), scheduled_for=at
    )
    for path in ("", "definitions", "definition?name=remind", "runs", f"runs/{run}"):
        page = pages.get(f"/jobs/{path}").text
        assert _zone(page) == "Asia/Tokyo", path
    page = pages.get(f"/jobs/runs/{run}").text
    assert re.search(r"Wed 21 Jan( 2026)? 07:00</time>", page)


def test_a_page_of_several_zones_is_in_that_of_the_app(pages: Pages) -> None:
    pages.define("a", timezone="Asia/Tokyo")
    pages.define("b", timezone="Europe/Berlin")
    assert _zone(pages.get("/jobs/definitions").text) == "UTC"
    assert _zone(pages.get("/jobs/definition?name=b").text) == "Europe/Berlin"


def test_a_broken_zone_of_a_definition_is_not_the_pages(pages: Pages) -> None:
    pages.define(timezone="Mars/Olympus")
    assert _zone(pages.get("/jobs/definition?name=remind").text) == "UTC"


def test_the_choice_is_kept_for_all_pages(pages: Pages) -> None:
    pages.add("succeeded", definition_id=pages.define(timezone="Asia/Tokyo"))
    page = pages.get("/jobs/runs?zone=America/New_York&status=succeeded").text
    assert _zone(page) == "America/New_York"
    assert len(_offered(page)) == 2
    assert '<a href="/jobs/runs?status=succeeded&amp;zone=schedule">' in page
    assert _zone(pages.get("/jobs/").text) == "America/New_York"
    assert _zone(pages.get("/jobs/?zone=UTC").text) == "UTC"
    assert len(_offered(pages.get("/jobs/").text)) == 1
    assert _zone(pages.get("/jobs/?zone=schedule").text) == "Asia/Tokyo"
    assert _zone(pages.get("/jobs/").text) == "Asia/Tokyo"


def test_the_cookie_is_for_these_pages_alone(pages: Pages) -> None:
    answer = pages.get("/jobs/?zone=UTC")
    (cookie,) = answer.headers.getlist("Set-Cookie")
    assert cookie.startswith("cronjobs_zone=UTC; ")
    assert "Path=/jobs/" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Set-Cookie" not in pages.get("/jobs/").headers


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "", "schedule; x=1"])
def test_a_cookie_that_is_no_zone_is_ignored(pages: Pages, zone: str) -> None:
    pages.client.set_cookie("cronjobs_zone", zone, path="/jobs/")
    answer = pages.get("/jobs/")
    assert answer.status_code == 200
    assert _zone(answer.text) == "UTC"


def test_a_zone_that_does_not_exist_is_400(pages: Pages) -> None:
    answer = pages.get("/jobs/?zone=Mars/Olympus")
    assert answer.status_code == 400
    assert "zone must be" in answer.text
    assert "Set-Cookie" not in answer.headers


def test_the_links_keep_the_query_and_the_prefix(pages: Pages) -> None:
    query = "task=a%26b&_external=1&_anchor=x&zone=Asia/Tokyo"
    page = pages.get(f"/jobs/runs?{query}", base_url="http://localhost/x").text
    kept = "/x/jobs/runs?task=a%26b&amp;_external=1&amp;_anchor=x&amp;zone"
    assert f'<a href="{kept}=UTC">Show UTC' in page


def test_seconds_are_shown_unless_it_is_a_slot(pages: Pages) -> None:
    slot = NOW.replace(hour=7, minute=0, second=0, microsecond=0)
    ended = slot.replace(minute=1, second=9)
    run = pages.add("succeeded", scheduled_for=slot, started_at=slot.replace(second=2), run_at=slot,
              finished_at=ended)  # fmt: skip
    page = pages.get(f"/jobs/runs/{run}").text
    assert " 07:00</time>" in page
    assert " 07:00:02</time>" in page
    assert " 07:01:09</time>" in page
    assert "2.0 s, then 1 min 7 s" in page
    assert "waited 2.0 s" in pages.get("/jobs/runs").text


def test_the_answer_to_a_wrong_form_offers_no_zone(pages: Pages) -> None:
    data = {"name": "remind", "payload": "{no"}
    answer = pages.client.post("/jobs/definitions/run", data=data, headers=OWN)
    assert answer.status_code == 400
    assert "zone" not in answer.text


def test_what_the_app_adds_to_urls_stays_a_parameter(pages: Pages) -> None:
    @pages.app.url_defaults
    def add_language(endpoint: str, values: dict[str, object]) -> None:
        values.setdefault("lang", "de")

    answer = pages.get("/jobs/definitions?search=a&zone=Asia/Tokyo")
    link = "/jobs/definitions?lang=de&amp;search=a&amp;zone=UTC"
    assert f'<a href="{link}">Show UTC' in answer.text
    assert (
        f'<a href="{link}">Show UTC'
        in pages.get("/jobs/definitions?lang=de&search=a&zone=Asia/Tokyo").text
    )
    assert "Path=/jobs/;" in answer.headers["Set-Cookie"]
