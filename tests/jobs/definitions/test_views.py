"""The list of definitions: which need a person, searches, orders and pages."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs import CronJobs
from flask_cronjobs.jobs.definitions.views import (
    DefinitionFilter,
    DefinitionState,
    list_definitions,
)
from flask_cronjobs.jobs.overview import read_overview
from flask_cronjobs.jobs.state import State
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


def _names(state: State, which: DefinitionFilter | None = None) -> list[str]:
    return [row.name for row in list_definitions(state, which).rows]


@pytest.mark.usefixtures("needy")
def test_those_that_need_a_person_come_first(state: State) -> None:
    found = list_definitions(state).rows
    assert [(row.name, row.needs) for row in found] == [
        ("d missed", ("missed",)),
        ("a late one", ("dead", "late")),
        ("c dead", ("dead",)),
        ("b in doubt", ("doubt",)),
        ("e fine", ()),
        ("f paused", ()),
    ]
    assert [row.name for row in read_overview(state).definitions.rows] == _names(state)


@pytest.mark.usefixtures("needy")
@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("attention", ["d missed", "a late one", "c dead", "b in doubt"]),
        ("missed", ["d missed"]),
        ("dead", ["a late one", "c dead"]),
        ("doubt", ["b in doubt"]),
        ("late", ["a late one"]),
        ("paused", ["f paused"]),
    ],
)
def test_a_state_finds_those_that_have_it(
    state: State, wanted: DefinitionState, names: list[str]
) -> None:
    assert _names(state, DefinitionFilter(state=wanted)) == names


def test_what_was_missed_long_ago_or_retried_needs_nobody(state: State, rows: Rows) -> None:
    definition = rows.definition("a")
    rows.run("skipped", definition_id=definition, error_type="Missed", age=25 * 3600)
    rows.run("skipped", definition_id=definition, error_type="Overlap", age=60)
    rows.run("queued", definition_id=definition)
    (view,) = list_definitions(state).rows
    assert view.needs == ()


def test_those_that_no_code_declares_are_found(state: State, rows: Rows, jobs: CronJobs) -> None:
    jobs.task(name="known")(lambda: None)
    rows.definition("a", job_type="known", origin="database")
    rows.definition("b", job_type="gone", origin="database")
    rows.definition("c", job_type="known", undeclared_since=ago(5))
    assert _names(state, DefinitionFilter(state="unknown")) == ["b", "c"]


@pytest.mark.parametrize(
    ("search", "names"),
    [("MAIL", ["mail:1", "mail:2", "weekly"]), ("%", ["100%"]), ("_", []), (" 2 ", ["mail:2"])],
)
def test_a_search_finds_parts_of_names_and_tasks(
    state: State, rows: Rows, search: str, names: list[str]
) -> None:
    for name, task in (("mail:1", "a"), ("mail:2", "a"), ("weekly", "send_mail"), ("100%", "x")):
        rows.definition(name, job_type=task.replace("_", "-"))
    assert _names(state, DefinitionFilter(search=search)) == names
