"""What an operator does, click by click, with and without JavaScript."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection

import pytest
from selenium.common.exceptions import (
    NoAlertPresentException,
    NoSuchElementException,
    StaleElementReferenceException,
    UnexpectedAlertPresentException,
    WebDriverException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from flask_cronjobs.web import views

from .chromium import Browser
from .conftest import Site

pytestmark = pytest.mark.browser


def _link(browser: Browser, text: str) -> WebElement:
    return browser.find_element(By.PARTIAL_LINK_TEXT, text)


def _button(browser: Browser, label: str) -> WebElement:
    for button in browser.find_elements(By.TAG_NAME, "button"):
        if button.text.startswith(label):
            return button
    raise AssertionError(f"There is no button {label}")


def _follow(browser: Browser, element: WebElement) -> None:
    """Click, answer yes where JavaScript asks, and wait until the page is left for the next one.

    The driver waits for a page that loads, but not for a click to begin loading it.
    """
    page = browser.find_element(By.TAG_NAME, "html")
    element.click()

    def left() -> bool:
        with suppress(NoAlertPresentException):
            browser.switch_to.alert.accept()
        with suppress(UnexpectedAlertPresentException):
            try:
                page.is_displayed()
            except StaleElementReferenceException:
                return True
            except WebDriverException as error:  # The page is being replaced at this moment.
                if "inspector error" not in str(error):
                    raise
        return False

    _until(left)


def _heading(browser: Browser) -> str:
    return browser.find_element(By.TAG_NAME, "h1").text


def _says(browser: Browser, text: str) -> None:
    """Wait until the page that an action leads to says *text*."""

    def said() -> bool:
        with suppress(NoSuchElementException, StaleElementReferenceException):
            return text in browser.find_element(By.CSS_SELECTOR, "[role=status]").text
        return False

    _until(said)


def _question(browser: Browser) -> str:
    """What JavaScript asks, once it does."""
    asked: list[str] = []

    def asks() -> bool:
        with suppress(NoAlertPresentException):
            asked.append(browser.switch_to.alert.text)
        return bool(asked)

    _until(asks)
    return asked[0]


def _icon(browser: Browser) -> str:
    found = browser.find_element(By.CSS_SELECTOR, "link[rel=icon]").get_attribute("href")
    assert found is not None
    return found.rpartition("/")[2].partition("?")[0]


def _until(true: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_verdict_goes_red_when_ticks_stop(either_browser: Browser, site: Site) -> None:
    browser = either_browser
    site.tick()
    browser.get(f"{site.url}/")
    assert _heading(browser) == browser.title.partition(" · ")[0] == "All is well"
    assert _icon(browser) == "icon-good.svg"
    site.age_ticks(400)
    browser.refresh()
    assert _heading(browser) == browser.title.partition(" · ")[0] == "Ticks have stopped"
    assert _icon(browser) == "icon-bad.svg"
    assert "6 min" in browser.find_element(By.CSS_SELECTOR, ".verdict").text


def test_a_dead_run_is_found_read_retried_and_succeeds(either_browser: Browser, site: Site) -> None:
    browser = either_browser
    site.die(812)
    browser.get(f"{site.url}/")
    assert _heading(browser).startswith("Ticks are running, but 1 run ended dead")
    _follow(browser, _link(browser, "print_invoice"))
    _follow(browser, _link(browser, "print_invoice"))
    assert "gave up" in browser.find_element(By.CSS_SELECTOR, ".verdict").text
    stack = browser.find_element(By.CSS_SELECTOR, ".stack")
    assert stack.is_displayed()
    assert "RuntimeError: the printer is out of paper" in stack.text
    assert "in print_invoice" in stack.text
    site.broken.clear()
    _follow(browser, _button(browser, "Retry"))
    _says(browser, "is queued again")
    site.tick()
    browser.refresh()
    assert "succeeded" in browser.find_element(By.CSS_SELECTOR, ".verdict").text
    assert "invoice 812 is printed" in browser.find_element(By.TAG_NAME, "main").text
    assert not browser.find_elements(By.CSS_SELECTOR, "[role=status]")


def test_pause_and_resume_and_run_now(either_browser: Browser, site: Site) -> None:
    browser = either_browser
    site.tick()
    browser.get(f"{site.url}/")
    _follow(browser, _button(browser, "Pause"))
    _says(browser, "print_letters is paused")
    assert "paused" in browser.find_element(By.CSS_SELECTOR, ".definitions").text
    _follow(browser, _button(browser, "Resume"))
    _says(browser, "print_letters is resumed")
    assert "07:00" in browser.find_element(By.CSS_SELECTOR, ".definitions .next").text
    _follow(browser, _button(browser, "Run now"))
    _says(browser, "is queued")
    site.tick()
    browser.get(f"{site.url}/")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".recent .cell.succeeded")) == 1


def test_a_group_is_retried_or_discarded_after_a_question(
    either_browser: Browser, site: Site
) -> None:
    browser = either_browser
    site.die(0, 1, 2)
    browser.get(f"{site.url}/")
    _follow(browser, _button(browser, "Retry all"))
    _says(browser, "3 runs of print_invoice are queued again.")
    site.tick()
    browser.get(f"{site.url}/")
    _follow(browser, _link(browser, "Discard"))
    assert _heading(browser) == "Discard 3 runs?"
    _follow(browser, _button(browser, "Discard"))
    _says(browser, "3 runs are discarded.")
    browser.get(f"{site.url}/")
    assert _heading(browser) == "All is well"


def test_a_group_is_left_alone_by_who_says_no(browser: Browser, site: Site) -> None:
    site.die(1)
    browser.get(f"{site.url}/")
    _button(browser, "Retry").click()
    assert _question(browser) == "Queue 1 dead run of print_invoice again?"
    browser.switch_to.alert.dismiss()
    browser.refresh()
    assert "1 run" in browser.find_element(By.CSS_SELECTOR, ".groups").text


def test_runs_are_filtered_by_the_form(either_browser: Browser, site: Site) -> None:
    browser = either_browser
    with site.app.app_context():
        site.jobs.run_now("print_letters")
    site.die(1)
    browser.get(f"{site.url}/runs")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".runs > li")) == 2
    browser.find_element(By.NAME, "error").send_keys("PAPER")
    _follow(browser, _button(browser, "Show"))
    assert len(browser.find_elements(By.CSS_SELECTOR, ".runs > li")) == 1
    field = browser.find_element(By.NAME, "error")
    assert field.get_attribute("value") == "PAPER"


def test_an_action_is_refused_from_another_site(browser: Browser, site: Site) -> None:
    site.die(1)
    # Another origin: the same server by another name.
    browser.get(site.url.replace("127.0.0.1", "localhost") + "/runs/1")
    browser.execute_script(
        """
        const form = document.querySelector("form[action$='/retry']");
        form.action = form.action.replace("localhost", "127.0.0.1");
        """
    )
    _button(browser, "Retry").click()
    # The form-action of the policy stops it in the browser; a site without one gets a 403.
    time.sleep(0.2)
    host = site.url.removeprefix("http://").removesuffix("/jobs")
    connection = HTTPConnection(host)
    connection.request("POST", "/jobs/runs/1/retry", headers={"Origin": "http://localhost"})
    assert connection.getresponse().status == 403
    connection.close()
    browser.get(f"{site.url}/runs/1")
    assert "gave up" in browser.find_element(By.CSS_SELECTOR, ".verdict").text


def _color(browser: Browser) -> str:
    sign = browser.find_element(By.CSS_SELECTOR, ".verdict h1")
    return sign.value_of_css_property("color")


def test_the_page_renews_itself_and_does_not_look_live_when_it_cannot(
    browser: Browser, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "REFRESH", 1)
    site.tick()
    browser.get(f"{site.url}/")
    assert browser.title.startswith("All is well")
    site.age_ticks(400)
    _until(lambda: browser.title.startswith("Ticks have stopped"))
    assert (_heading(browser), _icon(browser)) == ("Ticks have stopped", "icon-bad.svg")
    live = _color(browser)
    site.rights.clear()
    _until(lambda: browser.title.startswith("Out of date since "))
    assert _icon(browser) == "icon-idle.svg"
    assert _color(browser) != live
    stamp = browser.find_element(By.ID, "stamp").text
    since = stamp.removeprefix("Not refreshed since ")
    assert since != stamp
    assert browser.title == f"Out of date since {since} · Jobs"
    site.rights.add("read")
    _until(lambda: browser.title.startswith("Ticks have stopped"))
    assert (_icon(browser), _color(browser)) == ("icon-bad.svg", live)
    assert not browser.find_element(By.ID, "stamp").is_displayed()


def test_a_page_that_is_in_use_for_long_does_not_look_live(
    browser: Browser, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The focus keeps a page from being renewed, also when its user has left."""
    monkeypatch.setattr(views, "REFRESH", 0.25)
    site.tick()
    browser.get(f"{site.url}/")
    browser.execute_script("document.querySelector('main a').focus()")
    _until(lambda: browser.title.startswith("Out of date since "))
    browser.execute_script("document.activeElement.blur()")
    _until(lambda: browser.title.startswith("All is well"))


def test_the_keyboard_is_enough(browser: Browser, site: Site) -> None:
    site.tick()
    browser.get(f"{site.url}/")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.text == "Skip to the content"
    assert skip.location["x"] >= 0
    skip.send_keys(Keys.ENTER)
    _until(lambda: browser.switch_to.active_element.get_attribute("id") == "main")
    labels: list[str] = []
    for _ in range(12):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        labels.append(browser.switch_to.active_element.text)
        if labels[-1].startswith("Pause"):
            break
    focused = browser.switch_to.active_element
    assert focused.value_of_css_property("outline-style") == "solid"
    focused.send_keys(Keys.ENTER)
    _says(browser, "print_letters is paused")


def test_a_definition_is_searched_and_its_page_read(either_browser: Browser, site: Site) -> None:
    browser = either_browser
    site.tick()
    browser.get(f"{site.url}/definitions")
    browser.find_element(By.NAME, "search").send_keys("LETTERS")
    _follow(browser, _button(browser, "Show"))
    _follow(browser, _link(browser, "letters"))
    verdict = browser.find_element(By.CSS_SELECTOR, ".verdict").text
    assert "Every day at 07:00, in the zone Europe/Berlin." in verdict
    assert len(browser.find_elements(By.CSS_SELECTOR, ".slots li")) == 10
    _follow(browser, _button(browser, "Run now"))
    _says(browser, "is queued")


def test_the_browsers_zone_can_be_chosen(browser: Browser, site: Site) -> None:
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    site.tick()
    browser.get(f"{site.url}/definitions?sort=name")
    link = _link(browser, "browser’s zone")  # noqa: RUF001
    _follow(browser, link)
    assert "Times in Asia/Tokyo" in browser.find_element(By.CSS_SELECTOR, ".zones").text
    assert browser.current_url.endswith("/definitions?sort=name&zone=Asia%2FTokyo")
    assert "07:00" not in browser.find_element(By.CSS_SELECTOR, ".next").text
    browser.get(f"{site.url}/")
    _follow(browser, _link(browser, "Show the schedule’s zone"))  # noqa: RUF001
    assert "07:00" in browser.find_element(By.CSS_SELECTOR, ".next").text
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_without_javascript_there_is_no_link_to_the_browsers_zone(
    start_browser: Callable[[bool], Browser], site: Site
) -> None:
    browser = start_browser(False)
    browser.get(f"{site.url}/")
    assert "browser" not in browser.find_element(By.CSS_SELECTOR, ".zones").text
