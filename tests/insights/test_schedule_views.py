"""The list of definitions: which need attention, searches, orders and pages."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.overview import read_overview
from flask_cronjobs.insights.schedule_views import list_definitions
from tests.rows import Rows, ago


@pytest.fixture
def needy(rows: Rows) -> None:
    """Definitions with each need, one with two, and two with none."""
    late = rows.definition("a late one", next_run_at=ago(3600))
    doubted = rows.run("succeeded", definition_id=rows.definition("b in doubt"))
    rows.effect("charge:1", run_id=doubted, state="in_doubt")
    rows.run("dead", definition_id=rows.definition("c dead"))
    missed: dict[str, Any] = {"error_type": "Missed", "age": 60, "attempts": 0}
    rows.run("skipped", definition_id=rows.definition("d missed"), **missed)
    rows.definition("e fine")
    rows.definition("f paused", paused_at=ago(5), next_run_at=ago(3600))
    rows.run("dead", definition_id=late)


@pytest.mark.usefixtures("needy")
def test_those_that_need_attention_come_first(state: State) -> None:
    views = list_definitions(state).rows
    assert [(row.name, row.needs) for row in views] == [
        ("d missed", ("missed",)),
        ("a late one", ("dead", "late")),
        ("c dead", ("dead",)),
        ("b in doubt", ("doubt",)),
        ("e fine", ()),
        ("f paused", ()),
    ]
    assert [row.name for row in read_overview(state).definitions.rows] == [
        row.name for row in views
    ]


def test_slots_missed_long_ago_or_retried_need_no_attention(state: State, rows: Rows) -> None:
    definition = rows.definition("a")
    rows.run("skipped", definition_id=definition, error_type="Missed", age=25 * 3600)
    rows.run("skipped", definition_id=definition, error_type="Overlap", age=60)
    rows.run("queued", definition_id=definition)
    (view,) = list_definitions(state).rows
    assert view.needs == ()
