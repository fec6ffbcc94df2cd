"""What a person sees of runs before they are changed."""

from __future__ import annotations

import pytest

from flask_cronjobs.jobs.runs import actions as module
from flask_cronjobs.jobs.runs.actions import of_status, preview
from flask_cronjobs.jobs.state import State
from tests.rows import Rows


def test_preview_has_the_first_runs_and_the_split_by_error(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHOWN", 2)
    kinds = ("KeyError", "ValueError", None, "ValueError", "KeyError", "ValueError")
    ids = [rows.run("dead", error_type=kind) for kind in kinds][::-1]
    found = preview(state, ids)
    assert [row.id for row in found.first] == ids[:2]
    assert found.split() == ["3 of send, ValueError", "2 of send, KeyError"]
    assert found.heading(6) == "By task and error"
    monkeypatch.setattr(module, "CAP", 4)
    found = preview(state, ids)
    assert found.split()[0] == "2 of send, ValueError"
    assert found.heading(6) == "By task and error, of the first 4 runs"
    assert preview(state, []).first == ()


def test_picked_runs_are_those_of_a_status(state: State, rows: Rows) -> None:
    dead, queued, failed = (rows.run(status) for status in ("dead", "queued", "failed"))
    assert of_status(state, [dead, queued, failed, 99], ("dead", "failed")) == [failed, dead]
