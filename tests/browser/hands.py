"""A person's actions on a page: find a link or a button, click it, and wait for the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from selenium.common.exceptions import (
    NoAlertPresentException,
    StaleElementReferenceException,
    UnexpectedAlertPresentException,
    WebDriverException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from .chromium import Browser


def find_link(browser: Browser, text: str) -> WebElement:
    """Return the first link that contains *text*."""
    return browser.find_element(By.PARTIAL_LINK_TEXT, text)


def find_button(browser: Browser, label: str, within: str = "main") -> WebElement:
    """Return the first button whose text begins with *label*."""
    for button in browser.find_elements(By.CSS_SELECTOR, f"{within} button"):
        if button.text.startswith(label):
            return button
    raise AssertionError(f"There is no button {label}")


def follow(browser: Browser, element: WebElement) -> int:
    """Click, answer yes if JavaScript asks, and wait for the next page; return the clicks.

    The driver waits for a page that loads, but not for a click to begin loading it. An answer
    counts as a click.
    """
    return leave(browser, element.click)


def leave(browser: Browser, act: Callable[[], object]) -> int:
    """Call *act*, which leads to another page, and do the rest of `follow`."""
    page = browser.find_element(By.TAG_NAME, "html")
    act()
    clicks = 1

    def left() -> bool:
        nonlocal clicks
        with suppress(NoAlertPresentException):
            browser.switch_to.alert.accept()
            clicks += 1
        with suppress(UnexpectedAlertPresentException):
            try:
                page.is_displayed()
            except StaleElementReferenceException:
                return True
            except WebDriverException as error:  # The page is being replaced at this moment.
                if "inspector error" not in str(error):
                    raise
        return False

    until(left)
    return clicks


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until *true* returns True."""
    deadline = time.monotonic() + seconds
    # A page that refreshes may replace an element between the search and the reading.
    while True:
        with suppress(StaleElementReferenceException):
            if true():
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)
