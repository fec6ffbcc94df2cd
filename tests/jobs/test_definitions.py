"""Rows of definitions: read, declared, changed, paused, resumed, removed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flask_cronjobs.schedule.catchup import SlotPlan
from tests.kit import Kit, spec
from tests.rows import ago, now


def test_declared_definition_stands_as_it_was_stated(kit: Kit) -> None:
    first = now() + timedelta(hours=1)
    stated = spec(
        payload={"a": [1]}, queue="mail", priority=2, max_attempts=3, catchup="all",
        overlap="allow", concurrency_key="key", concurrency_limit=2, timezone="Europe/Berlin",
    )  # fmt: skip
    assert kit.definitions.declare([(stated, first)], "code") == 1
    found = kit.definitions.find("definition")
    assert found is not None
    assert found.spec == stated
    assert (found.origin, found.paused, found.next_run_at) == ("code", False, first)
    assert not found.due


def test_definition_that_another_tick_declared_first_stays_as_it_is(kit: Kit) -> None:
    first = now() + timedelta(hours=1)
    kit.definitions.declare([(spec(schedule="1 * * * *"), first)], "code")
    assert kit.definitions.declare([(spec(schedule="2 * * * *"), first)], "code") == 0
    found = kit.definitions.find("definition")
    assert found is not None
    assert found.spec.schedule == "1 * * * *"


class TestRead:
    def test_definitions_from_code_are_read_due_or_not(self, kit: Kit) -> None:
        due = kit.define("due", due=ago(minutes=1))
        waiting = kit.define("waiting", due=now() + timedelta(hours=1))
        rows = kit.definitions.read(["due", "waiting"], [])
        assert [(row.id, row.due) for row in rows] == [(due, True), (waiting, False)]

    def test_definitions_that_this_code_does_not_declare_are_not_its_business(
        self, kit: Kit
    ) -> None:
        kit.define("of a newer deploy", due=ago(minutes=1))
        assert kit.definitions.read(["mine"], ["task"]) == []

    def test_due_definitions_of_the_database_are_read_if_their_task_is_known(
        self, kit: Kit
    ) -> None:
        due = kit.define("due", due=ago(minutes=1), origin="database")
        kit.define("unknown", due=ago(minutes=1), origin="database", job_type="unknown")
        kit.define("waiting", due=now() + timedelta(hours=1), origin="database")
        assert [row.id for row in kit.definitions.read([], ["task"])] == [due]

    def test_paused_definition_is_read_but_never_due(self, kit: Kit) -> None:
        kit.define("mine", due=ago(minutes=1))
        kit.definitions.pause(kit.found("mine"))
        (row,) = kit.definitions.read(["mine"], [])
        assert (row.paused, row.due) == (True, False)

    def test_later_pages_hold_only_due_ones_beyond_the_id(self, kit: Kit) -> None:
        ids = [kit.define(f"{number}", due=ago(minutes=1)) for number in range(3)]
        kit.define("waiting", due=now() + timedelta(hours=1))
        names = ["0", "1", "2", "waiting"]
        assert [row.id for row in kit.definitions.read(names, [], after=ids[0])] == ids[1:]


class TestChange:
    def test_changed_schedule_starts_at_its_own_next_slot_and_backfills_nothing(
        self, kit: Kit
    ) -> None:
        kit.define("mine", due=now() + timedelta(minutes=1))
        (row,) = kit.definitions.read(["mine"], [])
        first = now() + timedelta(days=1)
        assert kit.definitions.change(row, row.spec._replace(schedule="0 0 * * *"), first)
        changed = kit.definition(row.id)
        assert (changed.schedule, changed.next_run_at) == ("0 0 * * *", first)

    def test_changed_zone_moves_the_watermark_too(self, kit: Kit) -> None:
        kit.define("mine", due=now() + timedelta(minutes=1))
        (row,) = kit.definitions.read(["mine"], [])
        first = now() + timedelta(days=1)
        assert kit.definitions.change(row, row.spec._replace(timezone="Asia/Tokyo"), first)
        assert kit.definition(row.id).next_run_at == first

    def test_changed_payload_leaves_the_watermark(self, kit: Kit) -> None:
        due = now() + timedelta(minutes=1)
        kit.define("mine", due=due)
        (row,) = kit.definitions.read(["mine"], [])
        assert kit.definitions.change(row, row.spec._replace(payload={"a": 2}), ago(days=1))
        changed = kit.definition(row.id)
        assert (changed.payload, changed.next_run_at) == ({"a": 2}, due)

    def test_row_that_moved_on_since_it_was_read_is_left(self, kit: Kit) -> None:
        kit.define("mine", due=now() + timedelta(minutes=1))
        (row,) = kit.definitions.read(["mine"], [])
        kit.sql("UPDATE job_definitions SET next_run_at = '2999-01-01'")
        assert not kit.definitions.change(row, row.spec._replace(priority=5), row.next_run_at)
        assert kit.definition(row.id).priority == 0

    def test_schedule_that_never_comes_again_can_be_changed(self, kit: Kit) -> None:
        kit.define("mine")
        kit.sql("UPDATE job_definitions SET next_run_at = NULL")
        (row,) = kit.definitions.read(["mine"], [])
        first = now() + timedelta(days=1)
        assert kit.definitions.change(row, row.spec._replace(schedule="@daily"), first)
        assert kit.definition(row.id).next_run_at == first


class TestPause:
    def test_pause_and_resume_from_the_next_slot(self, kit: Kit) -> None:
        definition = kit.define("mine", due=ago(hours=3))
        assert kit.definitions.pause(kit.found("mine"))
        assert kit.definition(definition).paused_at is not None
        following = now() + timedelta(minutes=1)
        ended = SlotPlan(definition, now(), following, ())
        assert kit.definitions.skip_pause(kit.found("mine"), ended, resume=True) == []
        row = kit.definition(definition)
        assert (row.paused_at, row.next_run_at) == (None, following)

    def test_resuming_what_is_not_paused_changes_nothing(self, kit: Kit) -> None:
        due = ago(hours=3)
        definition = kit.define("mine", due=due)
        ended = SlotPlan(definition, due, now(), ())
        assert kit.definitions.skip_pause(kit.found("mine"), ended, resume=True) is None
        assert kit.definition(definition).next_run_at == due


class TestRemove:
    def test_definition_is_removed_and_its_runs_stay(self, kit: Kit) -> None:
        definition = kit.define("mine", origin="database")
        run = kit.run(definition_id=definition)
        assert kit.definitions.remove(kit.found("mine"))
        assert kit.definitions.find("mine") is None
        assert kit.row(run).definition_id == definition

    def test_removed_definition_s_id_is_never_used_again(self, kit: Kit) -> None:
        """Else its old runs would count as another's."""
        first = kit.define("first", origin="database")
        kit.definitions.remove(kit.found("first"))
        assert kit.define("second", origin="database") > first


@pytest.mark.parametrize("table", ["job_runs", "job_definitions"])
def test_ids_of_deleted_rows_are_never_used_again(kit: Kit, table: str) -> None:
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
        assert kit.definition(gone).undeclared_since == since
