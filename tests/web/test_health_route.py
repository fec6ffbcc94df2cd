"""Public requests for health cost little: one check at a time, for which few requests wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import redirect, request

from flask_cronjobs.insights.health import read_verdict
from flask_cronjobs.web import monitoring
from tests.marks import REDIRECTED

from .conftest import Pages

DOCS = Path(__file__).parents[2] / "docs"


class Slow:
    """Checks that end on request, and a thread that asks for one."""

    def __init__(self, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.looks = 0
        self.answers: list[str] = []
        self._pages = pages
        self._threads: list[threading.Thread] = []
        monkeypatch.setattr("flask_cronjobs.web.monitoring.read_verdict", self._look)

    def _look(self, state: object, **options: bool) -> object:
        self.looks += 1
        self.begun.release()
        self.go_on.wait(30)
        return read_verdict(state, **options)  # type: ignore[arg-type]

    def ask(self) -> None:
        """Ask in a separate thread."""

        def get() -> None:
            self.answers.append(self._pages.app.test_client().get("/jobs/health").text)

        self._threads.append(threading.Thread(target=get))
        self._threads[-1].start()

    def end(self) -> None:
        """End all checks."""
        self.go_on.set()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture
def slow(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Checks of the health that wait until the test releases them."""
    slow = Slow(pages, monkeypatch)
    yield slow
    slow.end()  # The app's connections are closed later, since each check returns one.


def test_others_get_the_last_answer_while_one_looks(pages: Pages, slow: Slow) -> None:
    pages.tick(5)
    slow.go_on.set()
    assert pages.get("/jobs/health").text == "ok\n"
    slow.go_on.clear()
    slow.begun = threading.Semaphore(0)
    slow.ask()
    assert slow.begun.acquire(timeout=10)
    for _ in range(5):
        assert pages.get("/jobs/health").text == "ok\n"
    assert slow.looks == 2
    slow.end()
    assert slow.answers == ["ok\n"]


def test_a_check_that_hangs_counts_as_down_until_it_ends(
    pages: Pages, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "LIMIT_SECONDS", 0.2)
    pages.tick(5)
    slow.ask()
    assert slow.begun.acquire(timeout=10)
    for _ in range(2):  # There is no last answer.
        began = time.monotonic()
        answer = pages.get("/jobs/health")
        assert (answer.status_code, answer.text) == (503, "down\n")
        assert time.monotonic() - began < 10
    assert slow.looks == 1
    slow.end()
    assert pages.get("/jobs/health").text == "ok\n"


def test_login_wall_lets_health_pass_by_the_endpoint_that_the_docs_name(pages: Pages) -> None:
    pages.tick(5)

    @pages.app.before_request
    def wall() -> Any:
        return None if request.endpoint == "cronjobs.health" else redirect("/login")

    assert pages.client.get("/jobs/health").status_code == 200
    assert pages.client.get("/jobs/").status_code in REDIRECTED
    assert "`cronjobs.health`" in (DOCS / "alerting.md").read_text()
