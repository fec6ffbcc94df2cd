"""Lists of runs in their order, and what a search finds."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from operator import attrgetter
from typing import Any

import pytest
from sqlalchemy import text

from flask_cronjobs import CronJobs, StateConflict
from flask_cronjobs.jobs.orders import list_key_orders
from flask_cronjobs.jobs.overview import find_place
from flask_cronjobs.jobs.reader import Reader, plain_data
from flask_cronjobs.jobs.runs import list as run_list
from flask_cronjobs.jobs.runs import search as run_search
from flask_cronjobs.jobs.runs.actions import CANCEL
from flask_cronjobs.jobs.runs.detail import facts_of
from flask_cronjobs.jobs.runs.filters import RunFilter
from flask_cronjobs.jobs.runs.list import (
    NEWEST,
    Cursor,
    RunPage,
    Sorting,
    list_runs,
    matching,
    sorting_of,
)
from flask_cronjobs.jobs.runs.rows import RunRow
from flask_cronjobs.jobs.runs.search import Depth, Found, showing, shown_key
from flask_cronjobs.jobs.state import State
from flask_cronjobs.text.redaction import redacted
from flask_cronjobs.types import STATUSES, TERMINAL, Status
from tests.plans import sent_by
from tests.rows import Rows, ago, view_of


def ids(state: State, search: str | None = None, **values: object) -> list[int]:
    which = RunFilter(search=search, **values)  # type: ignore[arg-type]
    return [row.id for row in list_runs(state, which).rows]


def walk(state: State, which: RunFilter, limit: int, order: Sorting = NEWEST) -> Iterator[RunPage]:
    """The pages of a list, one after the other."""
    cursor: Cursor | None = None
    while True:
        page = list_runs(state, which, cursor, limit, order)
        yield page
        cursor = page.next
        if cursor is None:
            return


def ids_of(pages: Iterable[RunPage]) -> list[int]:
    return [row.id for page in pages for row in page.rows]


# Order


@pytest.mark.parametrize("seed", range(2))
def test_each_run_is_listed_once_in_the_order_of_its_status(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever the page's length, and however many runs have one time, or priorities there are."""
    monkeypatch.setattr("flask_cronjobs.jobs.backlog.MOST_PRIORITIES", seed + 1)
    chosen, moments = random.Random(seed), [ago(seconds) for seconds in (-30, 10, 700, 900)]
    for status in chosen.choices(STATUSES, k=30):
        moment = chosen.choice(moments)
        key = None if status == "running" else chosen.choice([None, "k"])
        times: dict[str, Any] = {"run_at": moment}
        if status in TERMINAL:
            times["finished_at"] = moment
        rows.run(
            status,
            **times,
            priority=chosen.choice([0, 5]),
            concurrency_key=key,
            concurrency_limit=key and 1,
        )
    statuses: tuple[Status | None, ...] = (None, *STATUSES)
    for which in (RunFilter(overdue=True), *(RunFilter(status=each) for each in statuses)):
        order = sorting_of(which.status, which.overdue)
        found = [rows.get(run_id) for run_id in matching(state, which).ids]
        assert {run.status for run in found} <= ({which.status} if which.status else {*STATUSES})
        expected = sorted(found, key=lambda run: run.id, reverse=order.descending)
        expected.sort(key=attrgetter(order.column), reverse=order.descending)
        for limit in (2, 7, 50):
            assert ids_of(walk(state, which, limit, order)) == [run.id for run in expected]
    assert [sorting_of(status, False).column for status in ("dead", "failed", "running")] == [
        "finished_at", "run_at", "id",
    ]  # fmt: skip


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
    pages = list(walk(state, RunFilter(batch="old"), limit=4))
    assert ids_of(pages) == made[::-1]
    assert [page.partial for page in pages] == [False, False]


# Labels


def labels(state: State) -> list[str | None]:
    return [row.label for row in list_runs(state).rows]


def test_a_run_without_label_has_the_head_of_its_payload_where_payloads_are_shown(
    state: State, rows: Rows
) -> None:
    rows.run(payload={"to": "ada\n", "items": [1], "token": "s3cret", "message": "x" * 90})
    rows.run(payload={"to": "ada"}, label="invoice 1")
    rows.run(payload={"text": "x" * 9000})
    rows.run()
    assert labels(state) == [None, None, "invoice 1", None]
    object.__setattr__(state.settings, "show_payload", True)
    head = "to: ada , items: [1], token: ***, message: "
    assert labels(state) == [None, None, "invoice 1", f"{head}{'x' * (79 - len(head))}…"]


# Search


@pytest.fixture
def _shown(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    object.__setattr__(state.settings, "show_payload", True)
    monkeypatch.setattr(run_list, "SEARCH_PAGE", Depth(5000, 60.0))  # However slow the machine.


def test_finds_by_id_and_by_key_and_the_whole_key_comes_first(state: State, rows: Rows) -> None:
    first = rows.run(idempotency_key="invoice:1")
    second = rows.run(idempotency_key="invoice:12")
    assert ids(state, str(first)) == [first, second]
    assert ids(state, f"#{second} ") == ids(state, str(second), status="queued") == [second]
    assert ids(state, str(second), status="dead") == []
    assert ids(state, "invoice:1") == [first, second]
    assert ids(state, "key:INVOICE:12") == [second]
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
    assert ids(state, str(old)) == [old]


def test_finds_by_a_part_of_the_task_s_name(state: State, rows: Rows) -> None:
    report, percent = rows.run(job_type="send_report"), rows.run(job_type="import_%")
    assert ids(state, "REPORT") == [report]
    assert ids(state, "%") == [percent]


@pytest.mark.usefixtures("_shown")
@pytest.mark.parametrize("search", ["ADA@example", "Müller", '"user": 7', 'a "quoted" word', "\\n"])
def test_finds_by_a_part_of_the_payload(state: State, rows: Rows, search: str) -> None:
    payload = {"to": "ada@example.org", "name": "Müller", "user": 7, "t": 'a "quoted" word\\n'}
    run_id = rows.run(payload=payload)
    rows.run(payload={"to": "bob@other.org", "name": "Muller", "user": 8})
    assert ids(state, search) == [run_id]


@pytest.mark.usefixtures("_shown")
def test_a_field_or_the_label_is_searched_alone_and_what_is_exact_comes_first(
    state: State, rows: Rows
) -> None:
    exact = rows.run(payload={"customer_id": 471, "at": {"zip": "471"}})
    longer = rows.run(payload={"customer_id": 4711}, label="to 471")
    other = rows.run(payload={"other_id": 471, "token": 4711}, label="471", job_type="t")
    key = rows.run(idempotency_key="customer_id:471")
    assert ids(state, "customer_id:471") == [key, exact, longer]
    assert ids(state, "zip: 471") == [exact]
    assert ids(state, "label:471") == [other, longer]
    assert ids(state, "471") == [other, exact, key, longer]
    assert ids(state, "token:4711") == []
    hits = list_runs(state, RunFilter(search="customer_id:471")).hits
    assert {run: hit.around for run, hit in hits.items()} == {
        exact: "customer_id: 471",
        longer: "customer_id: 4711",
    }


def test_labels_are_searched_where_payloads_are_hidden(state: State, rows: Rows) -> None:
    run_id = rows.run(payload={"user": "ada"}, label="for Ada")
    assert ids(state, "label:ADA") == ids(state, "or ad") == [run_id]
    assert ids(state, "user:ada") == []


@pytest.mark.parametrize("shown", [False, True])
def test_finds_by_concurrency_key_what_waits_and_what_has_ended(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    object.__setattr__(state.settings, "show_payload", shown)
    key: dict[str, Any] = {"concurrency_key": "customer:7", "concurrency_limit": 2}
    ended, waits = rows.run("succeeded", **key), rows.run(**key)
    runs = rows.run("running", concurrency_share=0, **key)
    other = rows.run("dead", concurrency_key="customer:71", concurrency_limit=2)
    assert ids(state, "customer:7") == [runs, waits, ended, other]
    assert ids(state, "key:customer:71") == [other]
    monkeypatch.setattr(run_list, "WINDOW", 1)
    assert ids(state, "customer:7")[:2] == [runs, waits]


def _of_login(jobs: CronJobs) -> None:
    @jobs.task(unique="login:{user}:{token}", concurrency_key="{token:.9}", order="strict")
    def login(user: int, token: str) -> None: ...


_LOGIN: dict[str, Any] = {
    "job_type": "login",
    "payload": {"user": 7, "token": "hunter2"},
    "idempotency_key": "login:7:hunter2",
    "concurrency_key": "hunter2",
    "concurrency_limit": 1,
    "on_dead": "stop",
    "order_mark": None,
}


@pytest.mark.parametrize("shown", [False, True])
def test_a_key_is_shown_without_the_hidden_values_that_its_template_names(
    state: State, rows: Rows, jobs: CronJobs, shown: bool
) -> None:
    object.__setattr__(state.settings, "show_payload", shown)
    _of_login(jobs)
    run_id = rows.run("dead", **_LOGIN)
    view = view_of(state, run_id)
    assert (view.idempotency_key, view.concurrency_key) == ("login:7:***", "***")
    assert [each.key for each in list_key_orders(state).rows] == ["***"]
    assert "hunter2" not in repr((plain_data(view), list_key_orders(state), facts_of(view)))
    for search in ("login:7:hunter2", "hunter2", "key:hunter", "7:h"):
        assert ids(state, search) == [], search
        assert find_place(state, search)[0] == "runs"
    assert ids(state, "login:7:***") == ids(state, "key:login:7") == [run_id]


@pytest.mark.parametrize(
    ("key", "payload", "shown"),
    [
        ("by-hand:hunter2", {"token": "hunter2"}, "***"),
        ("by-hand:hunter2", {"auth": {"token": ["hunter2"]}}, "***"),
        ("by-hand:7", {"user": 7, "token": "hunter2"}, "by-hand:7"),
        ("by-hand:1", {"token": "1"}, "by-hand:1"),
        ("f:x://me:hunter2@db/", {"url": "x://me:hunter2@db/"}, "***"),
        (None, {"token": "hunter2"}, None),
    ],
)
def test_another_key_is_hidden_if_it_has_a_hidden_value(
    state: State, jobs: CronJobs, key: str | None, payload: dict[str, Any], shown: str | None
) -> None:
    _of_login(jobs)
    for task in ("login", "undeclared"):
        assert shown_key(state, task, payload, "unique", key) == shown


def test_lists_runs_of_several_statuses_and_of_a_time(state: State, rows: Rows) -> None:
    made = {
        status: rows.run(status, age=100 * place)
        for place, status in enumerate(("dead", "succeeded", "queued", "failed", "cancelled"))
    }
    several: list[list[Status]] = [["dead", "succeeded"], ["queued", "failed", "dead"]]
    for statuses in several:
        found = [row.id for row in list_runs(state, RunFilter(statuses=statuses)).rows]
        assert found == sorted((made[each] for each in statuses), reverse=True)
    assert ids(state, since=ago(250), until=ago(50)) == [made["queued"], made["succeeded"]]


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
    found = ids_of(walk(state, which, 1, order))
    shown = [row.id for row in everything if "to" in dict(rows.get(row.id).payload or {})]
    assert found == shown
    newest = sorted(shown, reverse=True)
    assert [matching(state, which, limit=most).ids for most in (2, 9)] == [newest[:2], newest]


@pytest.mark.usefixtures("_shown")
@pytest.mark.parametrize("status", [None, "queued", "dead"])
def test_a_search_that_takes_long_stops_and_goes_on(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch, status: Status | None
) -> None:
    made = [rows.run(status or "running", age=9 - n, payload={"to": "ada"}) for n in range(3)]
    others = [rows.run(status or "running", age=20 + n, payload={"to": "bob"}) for n in range(3)]
    monkeypatch.setattr(run_list, "SEARCH_PAGE", Depth(5000, 0.0))
    which, order = RunFilter(status=status, search="ada"), sorting_of(status, False)
    *pages, last = walk(state, which, 50, order)
    assert all(page.partial for page in pages)
    assert sorted(ids_of([*pages, last])) == made
    assert len(pages) + 1 == len(made) + len(others)


@pytest.mark.usefixtures("_shown")
def test_an_action_on_a_search_that_takes_long_is_refused(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = [rows.run(payload={"to": "ada"}) for _ in range(3)][-1]
    looking = partial(matching, state, RunFilter(search="ada"), depth=Depth(5000, 0.0))
    assert looking() == ([latest], latest)
    assert looking(limit=1) == ([latest], None)

    def slow(reader: Reader, search: str, found: Any, most: int, _: float) -> Found:
        return showing(reader, search, found, most, 0.0)

    monkeypatch.setattr(run_list, "showing", slow)
    with pytest.raises(StateConflict, match=f"looked back to run {latest} in 10 s, and stopped"):
        CANCEL.ids(state, RunFilter(search="ada"))


@pytest.mark.usefixtures("_shown")
@pytest.mark.parametrize("status", [None, "queued"])
def test_a_search_does_the_same_work_whether_or_not_a_hidden_value_matches(
    state: State,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
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
        with sent_by(state.engine) as sent:
            list_runs(state, RunFilter(search=search, status=status))
        work.append((len(looked), [statement for statement, _ in sent.statements]))
    assert work[0] == work[1]
    assert work[0][0] == 3
    assert not any("payload" in each and "like" in each.lower() for each in work[0][1])


# How long a run in a list took and had waited

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


def _row(status: str = "succeeded", took: float = 1.0, waited: float = 0.5, **more: Any) -> RunRow:
    """A run that waited and ran for so many seconds."""
    started = NOW + timedelta(seconds=waited)
    values: dict[str, Any] = dict.fromkeys(RunRow.__dataclass_fields__)
    values |= {"status": status, "scheduled_for": NOW, "run_at": NOW, "started_at": started}
    values |= {"finished_at": started + timedelta(seconds=took)}
    return RunRow(**(values | more))


def test_times_that_a_retry_or_a_cancel_has_changed_do_not_count() -> None:
    row = _row("failed", run_at=NOW + timedelta(hours=1))
    assert (row.waited, row.took) == (None, None)
    assert _row("cancelled").took is None
    assert _row("queued").waited is None
    assert _row("running", waited=7.0).waited == 7.0
    assert _row("succeeded", started_at=None).waited is None


def test_a_clock_that_went_back_makes_no_negative_times() -> None:
    row = _row(took=-3.0, waited=-2.0)
    assert (row.waited, row.took) == (0.0, 0.0)
