"""A hidden value is on no page, and in no command, ping or webhook."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import date
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from flask import Flask

from flask_cronjobs import CronJobs, current_run
from flask_cronjobs.insights.reader import Reader
from flask_cronjobs.models import JobRun
from tests.marks import on_both

from .conftest import OWN, Pages
from .crawl import Crawl

SECRET = "s3cretOfAda"
PAYLOAD: dict[str, Any] = {
    "user": "ada",
    "password": SECRET,
    "card": {"api_key": SECRET, "number": 5},
    "tokens": [{"value": SECRET}, [SECRET]],
    "dsn": f"postgresql://ada:{SECRET}@db/app",
}
COMMANDS = (
    *("", "list", "definitions", "definitions keyed", "batches", "batches b", "effects --all"),
    *("operations", "queues", "ticks", "doctor"),
    *(f"show {run_id}" for run_id in range(1, 8)),
)


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Payloads are shown unless a parameter says no; ticks report to the monitor."""
    urls = {
        f"CRONJOBS_{name}_URL": f"https://monitor.example/{SECRET}" for name in ("PING", "ALERT")
    }
    visible = getattr(request, "param", True)
    return {"CRONJOBS_SHOW_PAYLOAD": visible, "CRONJOBS_KEEP_OUTPUT": True, **urls}


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what monitors and the webhook got."""
    bodies: list[str] = []

    def fetch(url: str, body: bytes | None, *_: object) -> bool:
        bodies.append((body or b"").decode())
        return True

    monkeypatch.setattr("flask_cronjobs.features.pings.http._fetch", fetch)
    return bodies


@pytest.fixture
def filled(pages: Pages, reports: list[str]) -> Pages:
    """The pages of an app with a secret in each text that has a place for one."""
    declare(pages.jobs)
    with pages.app.app_context():
        enqueue(pages.jobs)
        pages.db.session.commit()
        pages.jobs.tick()
        pages.jobs.run_now("keyed")
        pages.jobs.tick()
    # A run that has failed before and is inside `once`; the secret is in its claim's token.
    token = f"web-1:7:{SECRET}"
    run_id = pages.add("running", locked_by=token, attempts=2)
    pages.failure(run_id, 1, worker=token)
    pages.effect("effect", run_id=run_id, locked_by=token)
    return pages


def declare(jobs: CronJobs) -> None:
    key = "k:{password}"

    @jobs.task(
        label="for {user}, {password}, {card}", schedule="* * * * *", payload=PAYLOAD,
        ping=f"https://monitor.example/{SECRET}", concurrency_key=key, unique=key,
        order="strict",
    )  # fmt: skip
    def keyed(user: str, password: str = SECRET, **more: object) -> dict[str, str]:
        jobs.once("charge", lambda: {"token": SECRET})
        jobs.step("api_key", lambda: SECRET)
        return {"token": SECRET}

    @jobs.task(rate="9/s", rate_key=key)
    def at_a_rate(user: str, **more: object) -> None: ...

    @jobs.task(retry=1, label="{password} of {user}")
    def fails(user: str, **more: object) -> None:
        print(f"password={SECRET}")
        current_run.progress(0.5, f"token={SECRET}")
        raise ValueError(f"could not log in with password={SECRET}", {"password": SECRET})


def enqueue(jobs: CronJobs) -> None:
    keyed, fails = jobs.get("keyed"), jobs.get("fails")
    jobs.enqueue("at_a_rate", PAYLOAD)
    jobs.enqueue("fails", PAYLOAD)
    jobs.enqueue("fails", PAYLOAD, idempotency_key=f"by hand {SECRET}")
    keyed.using(delay=3600).enqueue("eve", password=f"{SECRET}2")
    with jobs.batch("b", then=keyed, then_payload=PAYLOAD):
        fails.enqueue("bob", password=SECRET)


@pytest.mark.parametrize("settings", [True, False], indirect=True)
def test_a_hidden_value_is_nowhere(
    filled: Pages, app: Flask, reports: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flask_cronjobs")
    texts = {**Crawl(filled.client, "/jobs/").pages}
    for command in COMMANDS:
        for form in ([], ["--json"]):
            args = ["jobs", "admin", *command.split(), *form]
            texts[" ".join(args)] = app.test_cli_runner().invoke(args=args).output
    texts |= {f"told {number}": body for number, body in enumerate(reports)}
    texts["log"] = "\n".join(record.getMessage() for record in caplog.records)
    assert [name for name, text in texts.items() if SECRET in text] == []
    assert any("for ada, ***" in body for body in reports)
    assert any("died in the" in body for body in reports)


@on_both
def test_a_hidden_value_is_not_found(filled: Pages) -> None:
    with filled.app.app_context():
        keys = [run.idempotency_key for run in filled.db.session.query(JobRun)]
    own_keys = [key for key in keys if key is not None]
    assert len(own_keys) == 2
    for search in (*own_keys, SECRET, SECRET[:4], f"k:{SECRET}"):
        filled.shows(f"runs?q={quote(search)}", "No runs match")
        filled.shows(f"runs?key={quote(search)}", "No run holds it now.", "No runs match")


@on_both
def test_a_search_for_a_hidden_key_reads_what_a_wrong_guess_reads(
    filled: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time of a search would tell whether a guess is the whole key."""
    reads: list[tuple[str, int]] = []
    rows_of = Reader.rows

    def rows(reader: Reader, statement: Any) -> Any:
        rows = rows_of(reader, statement)
        reads.append((str(statement), len(rows)))
        return rows

    with filled.app.app_context():
        keys = [run.idempotency_key for run in filled.db.session.query(JobRun)]
    monkeypatch.setattr(Reader, "rows", rows)
    searches: list[list[tuple[str, int]]] = []
    for guess in (*filter(None, keys), "k:guess"):
        reads.clear()
        filled.shows(f"runs?q={quote(guess)}", "No runs match")
        searches.append([*reads])
    assert len(searches) == 3
    assert searches[0] == searches[1] == searches[2]


@dataclass
class Card:
    """A type that an argument did not have before its annotation changed."""

    number: int
    password: dict[str, int]


#: An annotation in today's code, the argument's name, and the stored value, all or partly hidden.
MISFITS: list[tuple[Any, str, Any]] = [
    (int, "note", f"password={SECRET}"),
    (dict[str, int], "password", {SECRET: "x"}),
    (dict[int, int], "password", {SECRET: "x"}),
    (dict[str, Card], "password", {SECRET: {}}),
    (list[dict[str, date | UUID]], "password", [{SECRET: "x"}]),
    (Card, "password", {SECRET: 1}),
    (Card, "card", {"number": 5, "password": {SECRET: "x"}}),
    (Card | int, "card", {"number": 5, "password": {SECRET: "x"}}),
    (dict[str, UUID | int], "card", {"api_key": SECRET}),
]


@pytest.mark.parametrize(("annotation", "name", "value"), MISFITS)
def test_a_misfit_of_a_stored_payload_tells_no_value(
    pages: Pages, caplog: pytest.LogCaptureFixture, annotation: Any, name: str, value: Any
) -> None:
    def narrow(**arguments: int) -> None: ...

    narrow.__annotations__["arguments"] = annotation
    pages.jobs.task(name="narrow", retry=1)(narrow)
    run_id = pages.add("dead", job_type="narrow", payload={name: value})
    again = pages.client.post(f"/jobs/runs/{run_id}/again", headers=OWN, follow_redirects=True)
    admin = ["jobs", "admin"]
    runner = pages.app.test_cli_runner()
    commands = [
        [*admin, "again", str(run_id)],
        [*admin, "retry", str(run_id), "--payload", json.dumps({name: value})],
        [*admin, "retry", str(run_id)],
        ["jobs", "tick"],
        [*admin, "show", str(run_id)],
    ]
    texts = [again.text, *(runner.invoke(args=args).output for args in commands), caplog.text]
    texts.append(pages.text(f"runs/{run_id}"))
    assert f"{name}: expected" in again.text or f"{name}[" in again.text
    assert [text for text in texts if SECRET in text] == []
