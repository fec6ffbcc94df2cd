"""Rows of definitions are read, declared, changed, paused and removed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flask_cronjobs.schedule.catchup import SlotPlan
from tests.kit import Kit, spec
from tests.rows import ago, now


def test_declared_definition_stays_as_it_was_first_declared(kit: Kit) -> None:
    first = now() + timedelta(hours=1)
    stated = spec(
        payload={"a": [1]}, queue="mail", priority=2, max_attempts=3, catchup="all",
        overlap="allow", concurrency_key="key", concurrency_limit=2, timezone="Europe/Berlin",
    )  # fmt: skip
    assert kit.definitions.declare([(stated, first)], "code") == 1
    assert kit.definitions.declare([(spec(), first)], "code") == 0
    row = kit.find("definition")
    assert row.spec == stated
    assert (row.origin, row.paused, row.next_run_at) == ("code", False, first)
    assert not row.due


def test_tick_reads_what_its_code_declares_and_what_is_due_of_the_database_s_own(kit: Kit) -> None:
    due, later = ago(minutes=1), now() + timedelta(hours=1)
    own: dict[str, Any] = {"origin": "database"}
    kit.define("due", due)
    kit.define("waiting", later)
    kit.define("paused", due, paused_at=ago())
    kit.define("of a newer deploy", due)
    kit.define("own", due, **own)
    kit.define("own and unknown", due, job_type="unknown", **own)
    kit.define("own and waiting", later, **own)
    names = ["due", "waiting", "paused", "of older code"]
    rows = [(row.spec.name, row.due, row.paused) for row in kit.definitions.read(names, ["task"])]
    assert rows == [
        ("due", True, False), ("waiting", False, False), ("paused", False, True),
        ("own", True, False),
    ]  # fmt: skip
    first = kit.find("due").id
    assert [row.spec.name for row in kit.definitions.read(names, ["task"], after=first)] == ["own"]


class TestChange:
    def test_row_that_moved_on_since_it_was_read_is_left(self, kit: Kit) -> None:
        kit.define("mine", due=now() + timedelta(minutes=1))
        row = kit.find("mine")
        kit.sql("UPDATE job_definitions SET next_run_at = '2999-01-01'")
        assert not kit.definitions.change(row, replace(row.spec, priority=5), row.next_run_at)
        assert kit.defined(row.id).priority == 0

    def test_schedule_that_never_comes_again_can_be_changed(self, kit: Kit) -> None:
        kit.define("mine")
        kit.sql("UPDATE job_definitions SET next_run_at = NULL")
        row = kit.find("mine")
        first = now() + timedelta(days=1)
        assert kit.definitions.change(row, replace(row.spec, schedule="@daily"), first)
        assert kit.defined(row.id).next_run_at == first

    def test_pause_that_is_over_is_not_ended_again(self, kit: Kit) -> None:
        due = ago(hours=3)
        definition = kit.define("mine", due=due)
        ended = SlotPlan(due, now(), ())
        assert kit.definitions.skip_pause(kit.find("mine"), ended, resume=True) is None
        assert kit.defined(definition).next_run_at == due


@pytest.mark.parametrize("table", ["job_runs", "job_definitions"])
def test_ids_of_deleted_rows_are_never_used_again(kit: Kit, table: str) -> None:
    """Otherwise the old runs of a definition would count as those of a new one."""
    make = kit.run if table == "job_runs" else kit.define
    first = make()
    kit.sql(f"DELETE FROM {table}")
    assert make() > first


class TestUndeclared:
    def test_only_what_the_app_s_code_declared_once_and_now_lacks_is_marked(self, kit: Kit) -> None:
        kit.define("declared", app="this")
        gone = kit.define("gone", app="this")
        of_no_app = kit.define("of no app", app=None)
        kit.define("of another", app="another")
        kit.define("added by hand", app="this", origin="database")
        kit.define("added by hand, of no app", app=None, origin="database")
        kit.definitions.mark_undeclared(["declared"], "this")
        marked = kit.sql("SELECT id FROM job_definitions WHERE undeclared_since IS NOT NULL")
        assert {row.id for row in marked} == {gone, of_no_app}

    def test_mark_keeps_its_time(self, kit: Kit) -> None:
        since = ago(minutes=5)
        gone = kit.define("gone", app="this", undeclared_since=since)
        kit.definitions.mark_undeclared([], "this")
        assert kit.defined(gone).undeclared_since == since
