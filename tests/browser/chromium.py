"""Debian's Chromium, driven by selenium: starting, resizing, colors and pictures."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path
from typing import Any, Literal

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)

Browser = webdriver.Chrome


def missing() -> str | None:
    """Return what a browser test needs and this machine lacks, or None."""
    gone = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if gone:
        return f"{' and '.join(gone)} not found: run tests/browser/install.sh, or `make browser`"
    return None


#: A browser without a window has no mouse.
MOUSE = (
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,"
    "primaryPointerType=4,availablePointerTypes=4"
)


def start(profile: Path, javascript: bool = True, *flags: str) -> Browser:
    """Start the browser with an empty profile in the folder *profile*."""
    options = webdriver.ChromeOptions()
    # The test answers JavaScript's questions, not the driver.
    options.unhandled_prompt_behavior = "ignore"
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*_FLAGS, *flags, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    if not javascript:
        values = {"profile.managed_default_content_settings.javascript": 2}
        options.add_experimental_option("prefs", values)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def set_light(browser: Browser, scheme: Literal["light", "dark"]) -> None:
    """Make the browser prefer the color scheme *scheme*."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    _command(browser, "Emulation.setEmulatedMedia", features=[feature])


def set_width(browser: Browser, width: int, scale: float = 1) -> None:
    """Make the window *width* pixels wide."""
    _command(
        browser,
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=scale,
        mobile=width < 600,
    )


def picture(browser: Browser, most: int = 4000) -> bytes:
    """Return the whole page as a PNG, cut at *most* pixels from its top."""
    width, height = browser.execute_script(
        "return [innerWidth, document.documentElement.scrollHeight]"
    )
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, most), "scale": 1}
    shot = _command(browser, "Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    return base64.b64decode(shot["data"])


def _command(browser: Browser, name: str, **parameters: Any) -> dict[str, Any]:
    answer: dict[str, Any] = browser.execute_cdp_cmd(name, parameters)
    return answer
