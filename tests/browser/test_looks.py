"""The appearance of pages to a program: accessible, no overflow, hostile text as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from selenium.webdriver.common.by import By

from flask_cronjobs.models import JobDefinition, JobEffect, JobFailure, JobOutput, JobRun, JobTick
from flask_cronjobs.web.guard import MACHINES, ROUTES

from .chromium import Browser, set_light, set_width
from .conftest import DEAD, Site

pytestmark = pytest.mark.browser

AXE = Path(sys.prefix) / "axe/node_modules/axe-core/axe.min.js"
#: The addresses to check for each page; a page that is missing here fails a test.
PAGES_OF: dict[str, tuple[str, ...]] = {
    "status": ("/", "/?sort=next"),
    "runs": ("/runs", "/runs?status=dead", "/runs?overdue=1", "/runs?q=report&status=queued",
             "/runs?status=bogus", "/runs?task=send_weekly_report", "/runs?key=account:7",
             "/runs?batch=weekly_reports:2026-11-09"),
    "workers": ("/workers",),
    "run": (f"/runs/{DEAD}", "/runs/101", "/runs/103", "/runs/999999"),
    "definition": ("/definition?name=refresh_cache", "/definition?name=cleanup_nightly",
                   "/definition?name=plan_weekly_reports"),
    "edit": (f"/runs/{DEAD}/edit",),
    "prepare": ("/run?name=print_invoice",),
    "bulk": ("/runs/bulk?do=discard&status=dead", "/runs/bulk?do=retry&status=dead"),
}  # fmt: skip
PAGES = tuple(path for paths in PAGES_OF.values() for path in paths)
EVIL = (
    "\"'><img src=x onerror=alert(1)><script>document.title='owned';alert(2)</script>"
    "<svg onload=alert(3)>javascript:alert(4)" + "long" * 40
)


@pytest.fixture
def hostile_site(site: Site) -> Site:
    """A site with hostile text in every field, and an argument with a long name."""

    @site.jobs.task
    def remind(the_number_of_the_oldest_invoice_that_the_customer_has_not_paid: int) -> None: ...

    with site.app.app_context():
        now = datetime.now(timezone.utc)
        site.db.session.add_all(_hostile_rows(now))
        site.db.session.commit()
    return site


def _hostile_rows(now: datetime) -> Iterator[Any]:
    texts = {"job_type": EVIL, "queue": EVIL, "payload": {EVIL: [EVIL]}}
    ended = {"scheduled_for": now, "run_at": now, "finished_at": now, "started_at": now}
    yield JobDefinition(id=1, name=EVIL, schedule=EVIL, timezone=EVIL, **texts)
    fields = ("last_error", "error_type", "progress_message", "idempotency_key", "concurrency_key")
    odd = {**dict.fromkeys(fields, EVIL), "result": {EVIL: EVIL}, "concurrency_limit": 1}
    yield JobRun(id=1, definition_id=1, status="dead", attempts=1, **odd, **texts, **ended)
    yield JobRun(id=2, status="queued", scheduled_for=now, run_at=now, **texts)
    yield JobOutput(run_id=1, attempt=1, worker=EVIL, output=EVIL)
    failure = {"worker": EVIL, "error_type": EVIL, "error": EVIL, "stack": EVIL}
    yield JobFailure(run_id=1, attempt=1, started_at=now, failed_at=now, **failure)
    yield JobEffect(key=EVIL, state="in_doubt")
    yield JobTick(worker=EVIL, host=EVIL, pid=1, started_at=now, seen_at=now)


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core."""
    if not AXE.exists():
        pytest.skip(f"no axe-core in {AXE}: run `make browser` where npm works")
    return AXE.read_text()


def _violations(browser: Browser, axe: str) -> list[str]:
    browser.execute_script(axe)
    report = browser.execute_async_script(
        "axe.run(document, {resultTypes: ['violations'], rules: {'target-size': {enabled: true}}})"
        ".then(arguments[arguments.length - 1])"
    )
    return [
        f"{violation['impact']}: {violation['id']}: {node['html'][:150]} {node['failureSummary']}"
        for violation in report["violations"]
        for node in violation["nodes"]
    ]


def test_each_page_is_looked_at() -> None:
    machines = {name.partition(".")[2] for name in MACHINES}
    pages = {route.endpoint for route in ROUTES if route.right in ("read", "form")}
    assert set(PAGES_OF) == pages - machines


@pytest.fixture
def unscripted(browser: Browser) -> Iterator[Browser]:
    """A browser to which our script is not sent; a browser without JavaScript cannot run axe."""
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/pages.js*"]})
    yield browser
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    browser.execute_cdp_cmd("Network.disable", {})


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    browser: Browser, lively_site: Site, axe: str, scheme: Literal["light", "dark"], width: int
) -> None:
    _look_at_all(browser, lively_site, axe, scheme, width)
    assert browser.find_elements(By.CSS_SELECTOR, "html.scripted")


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_axe_finds_nothing_where_no_script_runs(
    unscripted: Browser, lively_site: Site, axe: str, scheme: Literal["light", "dark"], width: int
) -> None:
    _look_at_all(unscripted, lively_site, axe, scheme, width)
    assert not unscripted.find_elements(By.CSS_SELECTOR, "html.scripted")


def _look_at_all(
    browser: Browser, lively_site: Site, axe: str, scheme: Literal["light", "dark"], width: int
) -> None:
    set_light(browser, scheme)
    set_width(browser, width)
    for path in PAGES:
        browser.get(f"{lively_site.url}{path}")
        for details in browser.find_elements(By.CSS_SELECTOR, "details:not([open]) summary"):
            details.click()
        assert _violations(browser, axe) == [], path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_empty_pages_and_a_refusal(
    browser: Browser, site: Site, axe: str, scheme: Literal["light", "dark"]
) -> None:
    set_light(browser, scheme)
    for path in ("/", "/runs", "/workers", "/runs?status=dead"):
        if path == "/runs?status=dead":
            site.rights.clear()
        browser.get(f"{site.url}{path}")
        assert _violations(browser, axe) == [], path


def test_nothing_breaks_the_policy_nor_the_console(browser: Browser, lively_site: Site) -> None:
    browser.get_log("browser")  # Earlier tests left these messages.
    for path in (p for p in PAGES if "bogus" not in p and "999999" not in p):
        browser.get(f"{lively_site.url}{path}")
        logged = browser.get_log("browser")
        assert logged == [], path


@pytest.mark.parametrize("width", [320, 390, 700, 1000, 1400, 1600, 1900])
def test_nothing_hangs_off_the_side(browser: Browser, hostile_site: Site, width: int) -> None:
    set_width(browser, width)
    name = quote(EVIL)
    own = (f"/definition?name={name}", f"/runs?task={name}", f"/runs?q={name}", "/run?name=remind")
    for path in ("/", *own, "/runs", "/runs/1", "/runs/1/edit", "/workers"):
        browser.get(f"{hostile_site.url}{path}")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, path


@pytest.mark.parametrize("width", [320, 390])
def test_last_runs_are_seen_whole_on_a_phone(
    browser: Browser, lively_site: Site, width: int
) -> None:
    set_width(browser, width)
    for path in PAGES_OF["definition"]:
        browser.get(f"{lively_site.url}{path}")
        table = browser.find_element(By.CSS_SELECTOR, ".scroll")
        hidden = "return arguments[0].scrollWidth - arguments[0].clientWidth"
        assert browser.execute_script(hidden, table) == 0, path


def test_buttons_are_not_printed(browser: Browser, lively_site: Site) -> None:
    query = """return [...document.querySelectorAll("main button, main input, main .bulk")]
        .filter((each) => each.checkVisibility()).map((each) => each.outerHTML)"""
    for path in ("/", "/runs?status=dead", f"/runs/{DEAD}"):
        browser.get(f"{lively_site.url}{path}")
        assert browser.execute_script(query) != []
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        assert browser.execute_script(query) == [], path
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


#: The words of a page inside of which a line breaks; it may break after punctuation.
BROKEN_WORDS = r"""
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const broken = [];
while (texts.nextNode()) {
  const node = texts.currentNode;
  if (node.parentElement.closest("pre, option, .unseen, .skip, [hidden]")) continue;
  for (const word of node.data.matchAll(/[^\s_.:\/-]+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const lines = new Set(Array.from(range.getClientRects(), (box) => Math.round(box.top)));
    if (lines.size > 1) broken.push(word[0]);
  }
}
return broken;
"""


#: The clickable elements that are smaller than 24 px.
SMALL = """
return Array.from(document.querySelectorAll("a, button, input, select, textarea, summary"))
  .filter((each) => each.checkVisibility() && !each.closest(".skip, [aria-hidden]"))
  .map((each) => [each.getBoundingClientRect(), each])
  .filter(([box]) => box.width && Math.min(box.width, box.height) < 23.5)
  .map(([box, each]) => `${box.width} x ${box.height}: ${each.outerHTML}`)
"""


@pytest.mark.parametrize("width", [390, 1180])
def test_each_target_is_24_pixels(browser: Browser, lively_site: Site, width: int) -> None:
    set_width(browser, width)
    for path in PAGES:
        browser.get(f"{lively_site.url}{path}")
        assert browser.execute_script(SMALL) == [], path


@pytest.mark.parametrize("width", [390, 1280])
def test_the_head_is_one_row(browser: Browser, lively_site: Site, width: int) -> None:
    set_width(browser, width)
    for path in ("/", "/runs", "/workers"):
        browser.get(f"{lively_site.url}{path}")
        assert browser.find_element(By.CSS_SELECTOR, ".top").size["height"] < 60, path


@pytest.mark.parametrize("width", [320, 390, 1180])
def test_no_line_breaks_inside_a_word(browser: Browser, lively_site: Site, width: int) -> None:
    set_width(browser, width)
    for path in (p for p in PAGES if not p.startswith(("/run?", f"/runs/{DEAD}/edit"))):
        browser.get(f"{lively_site.url}{path}")
        assert browser.execute_script(BROKEN_WORDS) == [], path


def test_a_broken_word_is_found(browser: Browser, hostile_site: Site) -> None:
    set_width(browser, 320)
    browser.get(f"{hostile_site.url}/")
    assert browser.execute_script(BROKEN_WORDS)
