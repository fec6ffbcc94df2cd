"""Fixtures: an app that is served while a test runs, and browsers with and without JavaScript."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from werkzeug.serving import make_server

from example_app import lively
from flask_cronjobs import CronJobs
from flask_cronjobs.models import JobRun, JobTick

if TYPE_CHECKING:
    from .chromium import Browser


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Ignore this folder unless its tests are wanted, since importing Selenium takes a second."""
    unwanted = "not browser" in config.getoption("markexpr") or find_spec("selenium") is None
    return unwanted or None


#: The dead run of a lively day.
DEAD = 48


@dataclass
class Site:
    """A served app, and the behavior of its task."""

    url: str
    app: Flask
    db: SQLAlchemy
    jobs: CronJobs
    rights: set[str]
    broken: list[str] = field(default_factory=lambda: ["the printer is out of paper"])

    def tick(self) -> None:
        """Run a tick, as cron would."""
        with self.app.app_context():
            self.jobs.tick()

    def enqueue(self, *numbers: int) -> None:
        """Enqueue invoices, which the next tick prints."""
        with self.app.app_context():
            self.jobs.get("print_invoice").using(commit=True).enqueue_many(
                [{"number": number} for number in numbers]
            )

    def die(self, *numbers: int) -> None:
        """Let a tick fail to print invoices."""
        self.enqueue(*numbers)
        self.tick()

    def age_ticks(self, seconds: float) -> None:
        """Make the ticks *seconds* older."""
        by = timedelta(seconds=seconds)
        with self.app.app_context():
            for tick in self.db.session.query(JobTick):
                tick.started_at -= by
                tick.seen_at -= by
            self.db.session.commit()


@pytest.fixture
def url_prefix() -> str:
    """The path of the pages."""
    return "/jobs"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """The URL of an SQLite database: a browser sees no difference between the databases."""
    return sqlite_url


@pytest.fixture
def site(app: Flask, db: SQLAlchemy) -> Iterator[Site]:
    """A served app with one definition, and a task that fails while `Site.broken` is set."""
    rights = {"read", "act"}
    app.config.update(CRONJOBS_SHOW_PAYLOAD=True)
    jobs = CronJobs(app, authorize=lambda action: action in rights)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    site = Site(f"http://127.0.0.1:{server.server_port}/jobs", app, db, jobs, rights)

    @jobs.task(schedule="0 7 * * *", timezone="Europe/Berlin")
    def print_letters() -> None:
        """Do nothing: this is never due."""

    @jobs.task(retry=False)
    def print_invoice(number: int) -> str:
        if site.broken:
            raise RuntimeError(site.broken[0])
        return f"invoice {number} is printed"

    with app.app_context():
        db.create_all()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def lively_site(site: Site) -> Site:
    """A site with a day's rows; its code declares all tasks but one, so that all buttons show."""
    site.jobs.task(name="send_weekly_report")(lambda user_id, date_from, date_to: None)
    for name, task, cron, zone, _ in lively.DEFINITIONS:
        if name == task != "plan_weekly_reports":
            site.jobs.task(name=task, schedule=cron, timezone=zone)(lambda: None)
    with site.app.app_context():
        assert lively.fill(site.db) == DEAD
        site.db.session.add_all(_trouble(datetime.now(timezone.utc)))
        site.db.session.commit()
    return site


def _trouble(now: datetime) -> Iterator[JobRun]:
    """Add slots that no tick recorded in time, and a run that no worker takes."""
    night = now - timedelta(hours=9)
    yield JobRun(
        definition_id=5, job_type="plan_weekly_reports", status="skipped", error_type="Missed",
        last_error="missed: no tick ran in time", result={"skipped": 1}, scheduled_for=night,
        run_at=now, finished_at=now,
    )  # fmt: skip
    due = now - timedelta(minutes=95)
    yield JobRun(job_type="print_invoice", label="order 4711", scheduled_for=due, run_at=due)


@pytest.fixture(scope="session")
def start_browser(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[bool], Browser]]:
    """Return a function that starts a browser with or without JavaScript, once for all tests."""
    from . import chromium

    gone = chromium.missing()
    if gone is not None:
        pytest.skip(gone)
    running: dict[bool, Browser] = {}

    def start(javascript: bool) -> Browser:
        if javascript not in running:
            profile = tmp_path_factory.mktemp("profile")
            running[javascript] = chromium.start(profile, javascript)
        return running[javascript]

    yield start
    for browser in running.values():
        browser.quit()


@pytest.fixture
def browser(start_browser: Callable[[bool], Browser]) -> Iterator[Browser]:
    """A browser with JavaScript, as wide as a desktop's."""
    from . import chromium

    browser = start_browser(True)
    chromium.set_width(browser, 1180)
    chromium.set_light(browser, "light")
    yield browser
    browser.get("about:blank")


@pytest.fixture(params=["javascript", "no javascript"])
def either_browser(
    request: pytest.FixtureRequest, start_browser: Callable[[bool], Browser]
) -> Iterator[Browser]:
    """A browser with JavaScript, then one without."""
    browser = start_browser(request.param == "javascript")
    yield browser
    browser.get("about:blank")
