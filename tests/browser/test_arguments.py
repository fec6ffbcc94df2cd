"""Run something with other arguments, with and without JavaScript; copy a stack; stay in sight."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from flask_cronjobs.models import JobRun

from .chromium import Browser, missing, start
from .conftest import Site

pytestmark = pytest.mark.browser


@pytest.fixture
def dead(site: Site) -> int:
    """The id of a dead run."""
    site.die(7)
    return 1


def press(browser: Browser, label: str) -> None:
    """Press the button or link whose text begins so, and wait for the next page."""
    before = browser.find_element(By.TAG_NAME, "html")
    for each in browser.find_elements(By.CSS_SELECTOR, "main button, main a"):
        if each.text.startswith(label):
            each.click()
            break
    else:
        raise AssertionError(f"There is no {label}.")
    WebDriverWait(browser, 30).until(
        lambda _: browser.find_element(By.TAG_NAME, "html").id != before.id
    )


def test_a_dead_run_is_retried_with_another_payload(
    either_browser: Browser, site: Site, dead: int
) -> None:
    browser = either_browser
    browser.get(f"{site.url}/runs/{dead}")
    press(browser, "Retry with other arguments")
    field = browser.find_element(By.NAME, "argument:number")
    assert field.get_attribute("value") == "7"
    field.clear()
    field.send_keys("eight")
    press(browser, "Retry run")
    assert "number: expected" in browser.find_element(By.ID, "message").text
    field = browser.find_element(By.NAME, "argument:number")
    assert field.get_attribute("value") == "eight"
    field.clear()
    field.send_keys("8")
    press(browser, "Retry run")
    assert "is queued again" in browser.find_element(By.ID, "message").text
    with site.app.app_context():
        run = site.db.session.get_one(JobRun, dead)
        assert (run.status, run.payload) == ("queued", {"number": 8})


def test_a_message_stands_beside_its_row_and_stays_there(browser: Browser, site: Site) -> None:
    site.tick()
    browser.get(f"{site.url}/")
    press(browser, "Run now")
    row = browser.find_element(By.CSS_SELECTOR, ".definitions > li > #message")
    assert "Run 1 of print_letters is queued." in row.text
    press(browser, "Show run 1")
    assert browser.current_url.endswith("/runs/1")


def test_copy_puts_the_stack_on_the_clipboard(browser: Browser, site: Site, dead: int) -> None:
    browser.get(f"{site.url}/runs/{dead}")
    browser.execute_script(
        "navigator.clipboard.writeText = async (text) => { window.copied = text; }"
    )
    browser.find_element(By.CLASS_NAME, "copy").click()
    WebDriverWait(browser, 30).until(lambda _: browser.execute_script("return window.copied"))
    copied = browser.execute_script("return window.copied")
    assert copied.startswith("Traceback")
    assert "the printer is out of paper" in copied
    assert "runner.py" not in copied


def test_copy_works_over_plain_http(tmp_path: Path, site: Site, dead: int) -> None:
    gone = missing()
    if gone is not None:
        pytest.skip(gone)
    browser = start(tmp_path, True, "--host-resolver-rules=MAP jobs.example 127.0.0.1")
    try:
        browser.get(site.url.replace("127.0.0.1", "jobs.example") + f"/runs/{dead}")
        assert browser.execute_script("return [isSecureContext, typeof navigator.clipboard]") == [
            False,
            "undefined",
        ]
        browser.execute_script(
            "document.addEventListener('copy', () => { window.copied = String(getSelection()); })"
        )
        button = browser.find_element(By.CLASS_NAME, "copy")
        button.click()
        assert button.text.startswith("Copied")
        assert browser.execute_script("return getSelection().isCollapsed")
        copied = browser.execute_script("return window.copied")
        assert copied.startswith("Traceback")
        assert "the printer is out of paper" in copied
    finally:
        browser.quit()
