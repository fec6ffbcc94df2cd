"""Lists of runs in their order, and what a search finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from flask_cronjobs import StateConflict
from flask_cronjobs.jobs.runs import filters as run_search
from flask_cronjobs.jobs.runs import list as run_list
from flask_cronjobs.jobs.runs.filters import Cursor, sorting_of
from flask_cronjobs.jobs.runs.list import RunFilter, list_runs, matching_ids
from flask_cronjobs.jobs.state import State
from flask_cronjobs.text import redacted
from flask_cronjobs.types import Status
from tests.rows import Rows, ago


def ids(state: State, search: str | None = None, **values: object) -> list[int]:
    which = RunFilter(search=search, **values)  # type: ignore[arg-type]
    return [row.id for row in list_runs(state, which).rows]


def paged(state: State, status: Status, limit: int = 2) -> list[int]:
    """All ids of a list, page by page."""
    which, order = RunFilter(status=status), sorting_of(status, False)
    found: list[int] = []
    cursor: Cursor | None = None
    while True:
        page = list_runs(state, which, cursor, limit, order)
        found += [row.id for row in page.rows]
        cursor = page.next
        if cursor is None:
            return found


# Order


def test_the_dead_are_listed_by_their_death(state: State, rows: Rows) -> None:
    made = {age: rows.run("dead", age=age) for age in (50, 10, 90, 30, 70)}
    assert paged(state, "dead") == [made[age] for age in sorted(made)]


@pytest.mark.parametrize("status", ["queued", "failed"])
def test_waiting_runs_are_listed_as_they_come_due(state: State, rows: Rows, status: Status) -> None:
    made = {
        age: rows.run(
            status,
            age=age,
            concurrency_key="k" if age % 20 else None,
            concurrency_limit=1 if age % 20 else None,
        )
        for age in (50, -10, 90, -30, 70)
    }
    assert paged(state, status) == [made[age] for age in sorted(made, reverse=True)]


def test_runs_of_one_moment_are_listed_once_each(state: State, rows: Rows) -> None:
    moment = ago(100)
    made = [rows.run("dead", finished_at=moment) for _ in range(7)]
    assert paged(state, "dead", 3) == made[::-1]
    waiting = [rows.run("queued", run_at=moment) for _ in range(7)]
    assert paged(state, "queued", 3) == waiting


def test_other_runs_are_listed_by_id(state: State, rows: Rows) -> None:
    made = [rows.run("succeeded", age=age) for age in (10, 90, 50)]
    assert paged(state, "succeeded") == made[::-1]


def test_all_runs_of_an_old_batch_are_listed(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "WINDOW", 2)
    with state.engine.begin() as connection:
        new = "INSERT INTO job_batches (key) VALUES ('old'), ('other') RETURNING id"
        batch, other = sorted(connection.execute(text(new)).scalars())
    statuses = ("succeeded", "queued", "running", "dead", "skipped", "succeeded")
    made = [rows.run(status, batch_id=batch) for status in statuses]
    for batch_id in (other, None, None):
        rows.run("succeeded", batch_id=batch_id)
    assert ids(state, batch="old") == made[::-1]
    assert ids(state, batch="old", status="succeeded") == [made[5], made[0]]
    page = list_runs(state, RunFilter(batch="old"), limit=4)
    assert ([row.id for row in page.rows], page.partial) == (made[:1:-1], False)
    last = list_runs(state, RunFilter(batch="old"), page.next, limit=4)
    assert ([row.id for row in last.rows], last.partial) == (made[1::-1], False)


# Search


@pytest.fixture
def _shown(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    object.__setattr__(state.settings, "show_payload", True)
    monkeypatch.setattr(run_list, "SEARCH_FOR", 60.0)  # A busy machine may need more than a second.


def test_finds_by_id_and_by_the_whole_key(state: State, rows: Rows) -> None:
    first = rows.run(idempotency_key="invoice:1")
    second = rows.run(idempotency_key="invoice:12")
    assert ids(state, str(first)) == [first]
    assert ids(state, f"#{second} ") == [second]
    assert ids(state, "invoice:1") == [first]
    assert ids(state, "invoice") == []
    assert ids(state, "9" * 30) == []


def test_finds_an_old_run_by_its_id_and_key_beyond_the_window(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "WINDOW", 3)
    old = rows.run("succeeded", idempotency_key="old")
    for _ in range(5):
        rows.run("succeeded")
    page = list_runs(state, RunFilter(search="old"))
    assert [row.id for row in page.rows] == [old]
    assert page.partial
    assert page.searched_to is not None
    assert ids(state, str(old)) == [old]


def test_a_run_with_the_wanted_id_must_match_the_rest_of_the_filter(
    state: State, rows: Rows
) -> None:
    run_id = rows.run("dead")
    assert ids(state, str(run_id), status="dead") == [run_id]
    assert ids(state, str(run_id), status="queued") == []


def test_finds_by_a_part_of_the_task_s_name(state: State, rows: Rows) -> None:
    run_id = rows.run(job_type="send_report")
    rows.run(job_type="import_%")
    assert ids(state, "REPORT") == [run_id]
    assert ids(state, "%") != [run_id]
    assert len(ids(state, "%")) == 1


@pytest.mark.usefixtures("_shown")
@pytest.mark.parametrize("search", ["ADA@example", "Müller", '"user": 7', 'a "quoted" word', "\\n"])
def test_finds_by_a_part_of_the_payload(state: State, rows: Rows, search: str) -> None:
    payload = {"to": "ada@example.org", "name": "Müller", "user": 7, "t": 'a "quoted" word\\n'}
    run_id = rows.run(payload=payload)
    rows.run(payload={"to": "bob@other.org", "name": "Muller", "user": 8})
    assert ids(state, search) == [run_id]


def test_payloads_that_are_hidden_are_not_searched(state: State, rows: Rows) -> None:
    rows.run(payload={"to": "ada@example.org"})
    assert ids(state, "ada@example") == []


@pytest.mark.usefixtures("_shown")
@pytest.mark.parametrize("status", [None, "queued"])
def test_values_that_are_redacted_are_not_found(
    state: State, rows: Rows, status: Status | None
) -> None:
    rows.run(payload={"token": "hunter2", "url": "x://me:hunter2@db/", "to": "ada"})
    assert ids(state, "hunter2", status=status) == []
    assert len(ids(state, "ada", status=status)) == 1
    assert matching_ids(state, RunFilter(search="hunter2", status=status)) == []
    assert len(matching_ids(state, RunFilter(search="ada", status=status))) == 1


@pytest.mark.usefixtures("_shown")
def test_pages_look_past_runs_whose_match_is_hidden(state: State, rows: Rows) -> None:
    made = [rows.run(payload={"to": "ada"}) for _ in range(3)]
    for _ in range(4):
        rows.run(payload={"token": "ada"})
    page = list_runs(state, RunFilter(search="ada"), None, 2)
    assert [row.id for row in page.rows] == made[:0:-1]
    assert page.next == Cursor(made[1])
    last = list_runs(state, RunFilter(search="ada"), page.next, 2)
    assert ([row.id for row in last.rows], last.next, last.partial) == (made[:1], None, False)
    assert matching_ids(state, RunFilter(search="ada"), limit=2) == made[:0:-1]


@pytest.mark.usefixtures("_shown")
@pytest.mark.parametrize("status", [None, "queued", "dead", "succeeded", "cancelled"])
@pytest.mark.parametrize("window", [2, 3, 50])
def test_a_page_does_not_tell_that_a_hidden_value_matches(
    state: State,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    status: Status | None,
    window: int,
) -> None:
    monkeypatch.setattr(run_list, "WINDOW", window)
    made = [rows.run(status or "running", payload={"password": "hunter2"}) for _ in range(5)]
    order = sorting_of(status, False)
    for cursor in (None, Cursor(made[2], getattr(rows.get(made[2]), order.column))):
        right, wrong = (
            list_runs(state, RunFilter(search=search, status=status), cursor, 1, order)
            for search in ('"password": "hunter2', '"password": "hunter3')
        )
        assert right.rows == ()
        assert (right.next, right.partial, right.searched_to) == (
            wrong.next,
            wrong.partial,
            wrong.searched_to,
        )


@pytest.mark.usefixtures("_shown")
@pytest.mark.parametrize("status", ["queued", "dead", "succeeded"])
def test_a_search_of_payloads_goes_on_from_window_to_window(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    for number in range(11):
        rows.run(status, age=number, payload={"to" if number % 5 == 0 else "token": "ada"})
    which, order = RunFilter(status=status, search="ada"), sorting_of(status, False)
    everything = list_runs(state, RunFilter(status=status), None, 50, order).rows
    monkeypatch.setattr(run_list, "WINDOW", 3)
    found: list[int] = []
    page = list_runs(state, which, None, 1, order)
    found += [row.id for row in page.rows]
    while page.next is not None:
        page = list_runs(state, which, page.next, 1, order)
        found += [row.id for row in page.rows]
    shown = [row.id for row in everything if "to" in dict(rows.get(row.id).payload or {})]
    assert found == shown


@pytest.mark.usefixtures("_shown")
@pytest.mark.parametrize("status", [None, "queued", "dead"])
def test_a_search_that_takes_long_stops_and_goes_on(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch, status: Status | None
) -> None:
    made = [rows.run(status or "running", age=9 - n, payload={"to": "ada"}) for n in range(3)]
    others = [rows.run(status or "running", age=20 + n, payload={"to": "bob"}) for n in range(3)]
    monkeypatch.setattr(run_list, "SEARCH_FOR", 0.0)
    which, order = RunFilter(status=status, search="ada"), sorting_of(status, False)
    page = list_runs(state, which, None, 50, order)
    pages, found = 1, [row.id for row in page.rows]
    while page.next is not None:
        assert page.partial
        assert page.searched_to is not None
        page = list_runs(state, which, page.next, 50, order)
        pages, found = pages + 1, [*found, *(row.id for row in page.rows)]
    assert sorted(found) == made
    assert pages == len(made) + len(others)


@pytest.mark.usefixtures("_shown")
def test_an_action_on_a_search_that_takes_long_is_refused(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        rows.run(payload={"to": "ada"})
    monkeypatch.setattr(run_list, "SEARCH_ALL_FOR", 0.0)
    with pytest.raises(StateConflict, match="looked at 1 of 3 runs in 0 s, and stopped"):
        matching_ids(state, RunFilter(search="ada"))
    assert len(matching_ids(state, RunFilter(search="ada"), limit=1)) == 1


@pytest.mark.usefixtures("_shown")
@pytest.mark.parametrize("status", [None, "queued"])
def test_a_search_does_the_same_work_whether_or_not_a_hidden_value_matches(
    state: State,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    sent: list[str],
    status: Status | None,
) -> None:
    """Otherwise its time tells."""
    for _ in range(3):
        rows.run(payload={"password": "hunter2"})
    shown = redacted
    looked: list[object] = []

    def noted(payload: Any, names: Any) -> Any:
        looked.append(payload)
        return shown(payload, names)

    monkeypatch.setattr(run_search, "redacted", noted)
    work = []
    for search in ("hunter2", "hunter3"):
        looked.clear()
        sent.clear()
        list_runs(state, RunFilter(search=search, status=status))
        work.append((len(looked), list(sent)))
    assert work[0] == work[1]
    assert work[0][0] == 3
    assert not any("payload" in each and "like" in each.lower() for each in sent)


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """The statements that are sent."""
    statements: list[str] = []

    def note(_c: Any, _k: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield statements
    event.remove(Engine, "before_cursor_execute", note)
