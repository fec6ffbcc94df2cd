"""The questions of a night shift: Status, or a page at most two clicks away, answers each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from .chromium import Browser, set_light, set_width
from .conftest import Site
from .hands import find_button, find_link, follow, leave

pytestmark = pytest.mark.browser

#: Widths, each with a color scheme, and with or without JavaScript.
FORMS = ((1280, "light", True), (1280, "dark", False), (390, "dark", True), (390, "light", False))
#: The height of the part of a page that a window shows without scrolling, in pixels.
SCREEN = 900


class Walk:
    """A person who begins at Status; clicks, and answers to questions, are counted."""

    def __init__(self, browser: Browser, site: Site) -> None:
        self.browser, self.site = browser, site

    def begin(self) -> None:
        """Open Status."""
        self.clicks = 0
        self.browser.get(f"{self.site.url}/")

    def follow(self, element: WebElement) -> None:
        """Click on *element*, and answer yes."""
        self.clicks += follow(self.browser, element)

    def search(self, text: str) -> None:
        """Type *text* into the box at the top, and press the key Enter."""
        box = self.browser.find_element(By.CSS_SELECTOR, ".find input")
        self.clicks += leave(self.browser, lambda: box.send_keys(text, Keys.ENTER))

    def row(self, css: str, text: str) -> WebElement:
        """Return the first element of *css* that contains *text*."""
        rows = self.browser.find_elements(By.CSS_SELECTOR, css)
        return next(row for row in rows if text in row.text)

    def reads(self, element: WebElement, *parts: str, within: float | None = None) -> None:
        """Check that *element* has all *parts*, and is in the window or in its top *within* px."""
        assert element.is_displayed()
        assert [part for part in parts if part not in element.text] == [], element.text
        x, y = element.location["x"], element.location["y"]
        width = self.browser.execute_script("return document.documentElement.clientWidth")
        assert x >= 0
        assert x + element.size["width"] <= width
        assert within is None or y + element.size["height"] <= within


def _is_something_wrong_and_since_when(walk: Walk) -> None:
    walk.reads(walk.row(".verdict h1", "things need attention"), "5 things", within=SCREEN)
    worst = walk.row(".needs > li", "Work has been waiting")
    walk.reads(worst, "1 h 35 min ago", within=SCREEN)
    assert walk.browser.title.startswith("(5) ")


def _what_failed_and_for_whom(walk: Walk) -> None:
    group = walk.row(".failed > li", "send_welcome")
    error = "ValueError: The address has no domain"
    walk.reads(group, error, "user 1", "user 4", "4 dead", "5 h to 31 min ago")


def _why_did_it_fail(walk: Walk) -> None:
    walk.follow(find_link(walk.browser, "send_weekly_report"))
    walk.follow(find_link(walk.browser, "send_weekly_report"))
    walk.reads(walk.row(".cause", "SMTPServerDisconnected"), within=SCREEN)
    walk.reads(walk.row(".stack", "Traceback"), "mail.py", "getreply")


def _why_does_this_run_wait(walk: Walk) -> None:
    walk.search("user 7")
    waits = walk.row(".runs > li", "waiting")
    walk.reads(waits, "user 7", "behind run")
    walk.follow(find_link(walk.browser, "behind run"))
    walk.reads(walk.row(".verdict", "to be retried"), "ValueError: no user 7", "It waits")


def _what_waits_and_why(walk: Walk) -> None:
    walk.follow(find_link(walk.browser, "Runs"))
    walk.follow(walk.row(".chip", "waiting"))
    walk.reads(walk.row(".runs > li", "resize_photos"), "queue paused")


def _what_comes_next(walk: Walk) -> None:
    walk.follow(find_link(walk.browser, "next due first"))
    first = walk.browser.find_element(By.CSS_SELECTOR, ".schedules > li")
    walk.reads(first, "refresh_cache", "in ")


def _is_a_worker_alive(walk: Walk) -> None:
    walk.follow(find_link(walk.browser, "Workers"))
    walk.reads(walk.row(".hosts > li", "web-1"), "last tick", "ago", "all queues")
    walk.reads(walk.row(".queues > li", "default"), "waiting", "served by web-1, web-2")


def _what_did_somebody_do(walk: Walk) -> None:
    walk.reads(walk.row(".lines > li", "ada paused"), "queue images", "12 min ago")


def _retry_these(walk: Walk) -> None:
    group = walk.row(".failed > li", "send_welcome")
    walk.follow(group.find_element(By.TAG_NAME, "button"))
    walk.reads(walk.row("#message", "queued again"), "4 runs of send_welcome", within=SCREEN)


def _let_the_queue_go_on(walk: Walk) -> None:
    walk.follow(find_button(walk.browser, "Resume", ".needs"))
    walk.reads(walk.row("#message", "images"), "is resumed", within=SCREEN)


#: The questions, each with the most clicks that its answer may take. The last ones change rows.
QUESTIONS: tuple[tuple[Callable[[Walk], None], int], ...] = (
    (_is_something_wrong_and_since_when, 0),
    (_what_failed_and_for_whom, 0),
    (_why_did_it_fail, 2),
    (_why_does_this_run_wait, 2),
    (_what_waits_and_why, 2),
    (_what_comes_next, 1),
    (_is_a_worker_alive, 1),
    (_what_did_somebody_do, 0),
    (_retry_these, 2),
    (_let_the_queue_go_on, 1),
)


@pytest.fixture
def walk(
    request: pytest.FixtureRequest,
    start_browser: Callable[[bool], Browser],
    lively_site: Site,
) -> Iterator[Walk]:
    """A person who sees the pages in one of `FORMS`."""
    width, scheme, javascript = request.param
    browser = start_browser(javascript)
    set_width(browser, width)
    set_light(browser, scheme)
    yield Walk(browser, lively_site)
    browser.get("about:blank")


def _name(form: Any) -> str:
    width, scheme, javascript = form
    return f"{width}-{scheme}-{'script' if javascript else 'no script'}"


@pytest.mark.parametrize("walk", FORMS, indirect=True, ids=_name)
def test_each_question_of_a_night_takes_two_clicks_at_most(walk: Walk) -> None:
    for question, most in QUESTIONS:
        walk.begin()
        question(walk)
        assert walk.clicks <= most <= 2, question.__name__


class TestOnPostgreSQL:
    """There, other statements read the same pages."""

    @pytest.fixture
    def database_url(self, postgresql_url: str) -> str:
        return postgresql_url

    @pytest.mark.parametrize("walk", FORMS[-1:], indirect=True, ids=_name)
    def test_each_question_is_answered_there(self, walk: Walk) -> None:
        test_each_question_of_a_night_takes_two_clicks_at_most(walk)
