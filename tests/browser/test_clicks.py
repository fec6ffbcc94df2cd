"""An operator's actions, click by click, with and without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from selenium.common.exceptions import (
    NoAlertPresentException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.models import JobRun
from flask_cronjobs.web import render, runs

from .chromium import Browser, missing, start
from .conftest import Site
from .hands import find_button, find_link, follow, until

pytestmark = pytest.mark.browser


def _heading(browser: Browser) -> str:
    return str(browser.execute_script("return document.querySelector('h1').innerText"))


def _says(browser: Browser, text: str) -> None:
    """Wait until the page that an action leads to says *text*."""

    def said() -> bool:
        with suppress(NoSuchElementException, StaleElementReferenceException):
            return text in browser.find_element(By.CSS_SELECTOR, "[role=status]").text
        return False

    until(said)


def _question(browser: Browser) -> str:
    """Return JavaScript's question, once it asks."""
    questions: list[str] = []

    def asks() -> bool:
        with suppress(NoAlertPresentException):
            questions.append(browser.switch_to.alert.text)
        return bool(questions)

    until(asks)
    return questions[0]


def _icon(browser: Browser) -> str:
    url = browser.find_element(By.CSS_SELECTOR, "link[rel=icon]").get_attribute("href")
    assert url is not None
    return url.rpartition("/")[2].partition("?")[0]


def test_a_dead_run_is_found_read_retried_and_succeeds(either_browser: Browser, site: Site) -> None:
    browser = either_browser
    site.die(812)
    browser.get(f"{site.url}/")
    assert browser.title == "(1) 1 run died in the last 24 h · Jobs"
    follow(browser, find_link(browser, "print_invoice"))
    follow(browser, find_link(browser, "print_invoice"))
    assert "gave up" in browser.find_element(By.CSS_SELECTOR, ".verdict").text
    stack = browser.find_element(By.CSS_SELECTOR, ".stack")
    assert stack.is_displayed()
    assert "RuntimeError: the printer is out of paper" in stack.text
    assert "in print_invoice" in stack.text
    site.broken.clear()
    follow(browser, find_button(browser, "Retry"))
    _says(browser, "is queued again")
    site.tick()
    browser.refresh()
    assert "succeeded" in browser.find_element(By.CSS_SELECTOR, ".verdict").text
    assert "invoice 812 is printed" in browser.find_element(By.TAG_NAME, "main").text
    assert not browser.find_elements(By.CSS_SELECTOR, "[role=status]")


def test_a_group_is_retried_or_discarded_after_a_question(
    either_browser: Browser, site: Site
) -> None:
    browser = either_browser
    site.die(0, 1, 2)
    browser.get(f"{site.url}/")
    follow(browser, find_button(browser, "Retry all"))
    _says(browser, "3 runs of print_invoice are queued again.")
    site.tick()
    browser.get(f"{site.url}/")
    follow(browser, find_link(browser, "Discard"))
    assert _heading(browser) == "Discard 3 runs?"
    follow(browser, find_button(browser, "Discard"))
    _says(browser, "3 runs are discarded.")
    browser.get(f"{site.url}/")
    assert _heading(browser) == "All is well"


def test_a_group_is_unchanged_if_the_answer_is_no(browser: Browser, site: Site) -> None:
    site.die(1)
    browser.get(f"{site.url}/")
    find_button(browser, "Retry").click()
    assert _question(browser) == "Queue 1 dead run of print_invoice again?"
    browser.switch_to.alert.dismiss()
    browser.refresh()
    assert "1 dead" in browser.find_element(By.CSS_SELECTOR, ".failed").text


def test_runs_are_filtered_by_the_form(either_browser: Browser, site: Site) -> None:
    browser = either_browser
    with site.app.app_context():
        site.jobs.run_now("print_letters")
    site.die(1)
    browser.get(f"{site.url}/runs")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".runs > li")) == 2
    browser.find_element(By.CSS_SELECTOR, ".filters summary").click()
    browser.find_element(By.NAME, "task").send_keys("print_invoice")
    follow(browser, find_button(browser, "Show"))
    assert len(browser.find_elements(By.CSS_SELECTOR, ".runs > li")) == 1
    field = browser.find_element(By.NAME, "task")
    assert field.get_attribute("value") == "print_invoice"


def _color(browser: Browser) -> str:
    color = "return getComputedStyle(document.querySelector('.verdict h1')).color"
    return str(browser.execute_script(color))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages refresh several times a second."""
    monkeypatch.setattr(render, "REFRESH_SECONDS", 0.25)
    monkeypatch.setattr(runs, "REFRESH_SECONDS", 0.25)
    monkeypatch.setattr(runs, "REFRESH_ENDED_SECONDS", 0.25)
    monkeypatch.setattr(runs, "_REFRESH_RUN_SECONDS", {})
    monkeypatch.setattr(render, "RETRY_AFTER_SECONDS", 0.25)


def _stamp(browser: Browser) -> str:
    return browser.find_element(By.ID, "stamp").text


def _trouble(browser: Browser) -> str:
    return browser.find_element(By.ID, "trouble").text


@pytest.mark.usefixtures("quick")
def test_the_page_renews_itself_and_does_not_look_live_when_it_cannot(
    browser: Browser, site: Site
) -> None:
    site.tick()
    browser.get(f"{site.url}/")
    assert browser.title.startswith("All is well")
    site.age_ticks(400)
    until(lambda: "Ticks have stopped" in browser.title)
    assert (_heading(browser), _icon(browser)) == ("1 thing needs attention", "icon-bad.svg")
    live = _color(browser)
    site.rights.clear()
    until(lambda: browser.title.startswith("Out of date since "))
    assert _icon(browser) == "icon-idle.svg"
    assert _color(browser) != live
    since = browser.title.removeprefix("Out of date since ").removesuffix(" · Jobs")
    assert f"Not refreshed since {since}: Not allowed. Trying again." in _trouble(browser)
    site.rights.add("read")
    until(lambda: "Ticks have stopped" in browser.title)
    assert (_icon(browser), _color(browser)) == ("icon-bad.svg", live)
    assert _trouble(browser) == ""


@pytest.mark.usefixtures("quick")
def test_a_page_in_a_zone_that_the_browser_lacks_does_not_look_live_when_it_cannot_renew(
    browser: Browser, site: Site
) -> None:
    object.__setattr__(state_of(site.app).settings, "timezone", "localtime")
    browser.get(f"{site.url}/")
    site.rights.clear()
    until(lambda: re.match(r"Out of date since .* UTC", browser.title) is not None)
    assert "UTC: Not allowed. Trying again." in _trouble(browser)


@pytest.mark.usefixtures("quick")
def test_an_open_stack_and_a_mouse_at_rest_do_not_stop_a_page(browser: Browser, site: Site) -> None:
    site.die(1)
    browser.get(f"{site.url}/runs/1")
    # One script does both, since the page may refresh at any time.
    x, y = browser.execute_script(
        """
        document.querySelector("main summary").focus();
        const box = document.querySelector("main button").getBoundingClientRect();
        return [Math.round(box.x + 5), Math.round(box.y + 5)];
        """
    )
    mouse = ActionBuilder(browser)
    mouse.pointer_action.move_to_location(x, y)
    mouse.perform()
    browser.execute_script("document.body.style.minHeight = '3000px'; scrollTo(0, 120)")
    with site.app.app_context():
        site.jobs.retry(1)
    until(lambda: "waiting" in browser.title.lower())
    open_and_focused = (
        "return [document.querySelector('main details').open, document.activeElement.textContent]"
    )
    assert browser.execute_script(open_and_focused) == [True, "Stack"]
    assert browser.execute_script("return scrollY") > 0
    assert not browser.find_elements(By.CSS_SELECTOR, "html.stale")


@pytest.mark.usefixtures("quick")
def test_a_selection_keeps_a_page_but_not_its_tab_and_says_so(browser: Browser, site: Site) -> None:
    site.tick()
    browser.get(f"{site.url}/")
    browser.execute_script("getSelection().selectAllChildren(document.querySelector('main h1'))")
    site.age_ticks(400)
    until(lambda: "Ticks have stopped" in browser.title)
    assert _heading(browser) == "All is well"
    until(lambda: _trouble(browser) == "Not refreshed while you select or type.")
    until(lambda: bool(browser.find_elements(By.CSS_SELECTOR, "html.stale")))
    browser.execute_script("getSelection().removeAllRanges()")
    until(lambda: _heading(browser) == "1 thing needs attention")
    assert not browser.find_elements(By.CSS_SELECTOR, "html.stale")


@pytest.mark.usefixtures("quick")
def test_a_page_is_paused_and_says_how_old_it_is(browser: Browser, site: Site) -> None:
    site.tick()
    browser.get(f"{site.url}/")
    until(lambda: re.match(r"\d+\ss old", _stamp(browser)) is not None)
    button = browser.find_element(By.CSS_SELECTOR, "#stamp button")
    assert button.text == "Stop refreshing"
    button.click()
    site.age_ticks(400)
    until(lambda: browser.title.startswith("Out of date since "))
    assert _heading(browser) == "All is well"
    assert button.text == "Resume refreshing"
    button.click()
    until(lambda: _heading(browser) == "1 thing needs attention")


@pytest.mark.usefixtures("quick")
def test_what_was_picked_holds_the_page_until_it_is_unpicked(browser: Browser, site: Site) -> None:
    site.die(1)
    browser.get(f"{site.url}/runs")
    browser.find_element(By.CSS_SELECTOR, ".runs [type=checkbox]").click()
    browser.execute_script("document.activeElement.blur()")
    site.enqueue(2)
    until(lambda: _trouble(browser) == "Not refreshed while you select or type.")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".runs > li")) == 1
    browser.execute_script("document.querySelector('.runs [type=checkbox]').checked = false")
    until(lambda: len(browser.find_elements(By.CSS_SELECTOR, ".runs > li")) == 2)


@pytest.mark.usefixtures("quick")
def test_a_page_without_its_database_renews_itself(browser: Browser, site: Site) -> None:
    with site.app.app_context():
        site.db.drop_all()
    browser.get(f"{site.url}/")
    assert _heading(browser) == "The tables are missing"
    with site.app.app_context():
        site.db.create_all()
    until(lambda: _heading(browser) != "The tables are missing")


def test_the_keyboard_is_enough(browser: Browser, site: Site) -> None:
    site.tick()
    browser.get(f"{site.url}/")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.text == "Skip to the content"
    assert skip.location["x"] >= 0
    skip.send_keys(Keys.ENTER)
    until(lambda: browser.switch_to.active_element.get_attribute("id") == "main")
    for _ in range(16):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.switch_to.active_element
        row = focused.find_elements(By.XPATH, "ancestor::ol[contains(@class, 'schedules')]")
        if row and focused.text.startswith("Pause"):
            break
    focused = browser.switch_to.active_element
    assert focused.value_of_css_property("outline-style") == "solid"
    focused.send_keys(Keys.ENTER)
    _says(browser, "print_letters is paused")


def test_a_dead_run_is_retried_with_another_payload(either_browser: Browser, site: Site) -> None:
    browser = either_browser
    site.die(7)
    browser.get(f"{site.url}/runs/1")
    follow(browser, find_link(browser, "Edit and retry"))
    field = browser.find_element(By.NAME, "argument:number")
    assert field.get_attribute("value") == "7"
    field.clear()
    field.send_keys("eight")
    follow(browser, find_button(browser, "Retry run"))
    assert "number: expected" in browser.find_element(By.ID, "message").text
    field = browser.find_element(By.NAME, "argument:number")
    assert field.get_attribute("value") == "eight"
    field.clear()
    field.send_keys("8")
    follow(browser, find_button(browser, "Retry run"))
    assert "is queued again" in browser.find_element(By.ID, "message").text
    with site.app.app_context():
        run = site.db.session.get_one(JobRun, 1)
        assert (run.status, run.payload) == ("queued", {"number": 8})


@pytest.fixture
def plain_http(tmp_path: Path, site: Site) -> Iterator[Browser]:
    """A browser for which the site is at another host, so that it has no clipboard."""
    gone = missing()
    if gone is not None:
        pytest.skip(gone)
    browser = start(tmp_path, True, "--host-resolver-rules=MAP jobs.example 127.0.0.1")
    site.url = site.url.replace("127.0.0.1", "jobs.example")
    yield browser
    browser.quit()


@pytest.mark.parametrize("which", ["browser", "plain_http"])
def test_copy_puts_the_stack_on_the_clipboard(
    request: pytest.FixtureRequest, site: Site, which: str
) -> None:
    browser: Browser = request.getfixturevalue(which)
    site.die(7)
    browser.get(f"{site.url}/runs/1")
    has_clipboard = browser.execute_script("return typeof navigator.clipboard") == "object"
    assert has_clipboard == (which == "browser")
    browser.execute_script(
        """
        const { clipboard } = navigator;
        if (clipboard) clipboard.writeText = async (text) => { window.copied = text; };
        document.addEventListener("copy", () => { window.copied = String(getSelection()); });
        """
    )
    button = browser.find_element(By.CLASS_NAME, "copy")
    button.click()
    until(lambda: button.text.startswith("Copied"))
    assert browser.execute_script("return getSelection().isCollapsed")
    copied = browser.execute_script("return window.copied")
    assert copied.startswith("Traceback")
    assert "the printer is out of paper" in copied
    assert "runner.py" not in copied
