"""A definition that code dropped can be removed, by a command and by a button."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from click.testing import Result
from flask import Flask

from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State
from flask_cronjobs.insights.schedule_views import definition_names
from tests.rows import Rows

OWN = {"Sec-Fetch-Site": "same-origin"}
NAME = "dropped; 'x'"


@pytest.fixture(autouse=True)
def _declared(context: None, jobs: CronJobs) -> None:
    """Let the code declare one definition."""
    jobs.task(name="declared", schedule="@daily")(lambda: None)
    jobs.tick()


@pytest.fixture
def names(state: State) -> Callable[[], list[str]]:
    """Return a function that reads the names of the definitions."""
    return lambda: definition_names(state)


@pytest.fixture
def remove(app: Flask, jobs: CronJobs) -> Callable[[str], Result]:
    """Return a function that runs the command."""
    return lambda name: app.test_cli_runner().invoke(args=["jobs", "admin", "remove", name])


def test_the_command_removes_it_and_keeps_its_runs(
    state: State,
    rows: Rows,
    remove: Callable[[str], Result],
    names: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    run = rows.run("succeeded", definition_id=rows.definition(NAME))
    rows.definition("added", job_type="declared", origin="database")
    assert remove(NAME).output == f"Removed {NAME}. Its runs stay.\n"
    assert f"removed by {caplog.records[-1].cronjobs_actor}: definition {NAME}" in caplog.text  # type: ignore[attr-defined]
    assert remove("added").exit_code == 0
    assert names() == ["declared"]
    assert rows.get(run).status == "succeeded"
    again = remove(NAME)
    assert again.exit_code == 1
    assert again.output.startswith(f"Error: There is no definition {NAME!r}.")


@pytest.mark.pages
def test_what_code_declares_is_refused(
    app: Flask, remove: Callable[[str], Result], names: Callable[[], list[str]]
) -> None:
    result = remove("declared")
    assert result.exit_code == 1
    assert "is declared in code, so the next tick would create it again" in result.output
    answer = app.test_client().post(
        "/jobs/definitions/remove", data={"name": "declared"}, headers=OWN
    )
    assert answer.status_code == 303
    assert names() == ["declared"]
