"""What anybody may ask of health costs little: one look at a time, kept, and limited in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from flask import Flask

from flask_cronjobs.jobs.health import read_verdict
from flask_cronjobs.web import monitoring

from .conftest import Pages


class Slow:
    """A look that ends when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.looks = 0
        self._verdict = read_verdict
        monkeypatch.setattr("flask_cronjobs.web.monitoring.read_verdict", self)

    def __call__(self, state: object, **options: bool) -> object:
        self.looks += 1
        self.begun.release()
        self.go_on.wait(30)
        return self._verdict(state, **options)  # type: ignore[arg-type]


@pytest.fixture
def slow(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Looks at the health that wait until the test lets them go on."""
    slow = Slow(monkeypatch)
    yield slow
    slow.go_on.set()
    # Before the app's connections are closed: each look gives one back.
    for thread in threading.enumerate():
        if thread.name == "cronjobs-health":
            thread.join()


def test_requests_at_once_share_one_look(
    pages: Pages, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "KEEP", 60.0)
    pages.tick(5)
    answers: list[str] = []
    ask = [
        threading.Thread(
            target=lambda: answers.append(pages.app.test_client().get("/jobs/health").text)
        )
        for _ in range(8)
    ]
    for thread in ask:
        thread.start()
    assert slow.begun.acquire(timeout=10)
    slow.go_on.set()
    for thread in ask:
        thread.join(10)
    assert answers == ["ok\n"] * 8
    assert slow.looks == 1


def test_an_answer_is_kept_for_seconds(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "KEEP", 60.0)
    assert pages.get("/jobs/health").text == "never\n"
    pages.tick(5)
    assert pages.get("/jobs/health").text == "never\n"
    monkeypatch.setattr(monitoring, "KEEP", 0.0)
    assert pages.get("/jobs/health").text == "ok\n"


def test_a_look_that_hangs_is_down_and_the_next_request_does_not_wait_for_it(
    pages: Pages, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "LIMIT", 3.0)
    for most in (100, 2.9):
        began = time.monotonic()
        answer = pages.get("/jobs/health")
        assert (answer.status_code, answer.text) == (503, "down\n")
        assert time.monotonic() - began < most
    assert slow.looks == 1


def test_looks_that_hang_are_few_and_health_recovers(
    pages: Pages, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.tick(5)
    monkeypatch.setattr(monitoring, "LIMIT", 0.0)
    monkeypatch.setattr(monitoring, "HANGS", 0.0)
    for _ in range(6):
        assert pages.get("/jobs/health").text == "down\n"
    assert slow.looks == monitoring.MOST_HANGING
    slow.go_on.set()
    monkeypatch.setattr(monitoring, "LIMIT", 5.0)
    until = time.monotonic() + 120
    while pages.get("/jobs/health").text != "ok\n":
        assert time.monotonic() < until
