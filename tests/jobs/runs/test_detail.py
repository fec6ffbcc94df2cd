"""One run and its relatives."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs.jobs.runs import detail
from flask_cronjobs.jobs.runs.detail import Family, facts_of
from flask_cronjobs.jobs.state import State
from tests.rows import Rows, view_of


def _family(state: State, run_id: int) -> Family:
    found = view_of(state, run_id).family
    assert found is not None
    return found


def _ids(found: Family) -> tuple[int | None, ...]:
    near = (found.earlier, found.later, found.succeeded)
    return tuple(None if each is None else each.id for each in near)


def test_relatives_of_a_slot_are_those_of_its_definition_by_time(state: State, rows: Rows) -> None:
    report = rows.definition("report")
    own = {"definition_id": report, "job_type": "report"}
    last = rows.run("dead", age=10, **own)
    good = rows.run("succeeded", age=40, payload={"week": 3, "token": "x"}, **own)
    bad = rows.run("dead", age=30, **own)
    rows.run("succeeded", age=35, job_type="report")
    this = rows.run("dead", age=20, **own)
    found = _family(state, this)
    assert _ids(found) == (bad, last, good)
    assert found.succeeded_payload == {"week": 3, "token": "***"}
    assert _ids(_family(state, good)) == (None, bad, None)


def test_the_last_success_is_one_of_the_same_label_or_key_if_one_is_near(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = {"labelled": rows.run("succeeded", label="invoice 7")}
    near["keyed"] = rows.run("succeeded", concurrency_key="account:7", concurrency_limit=1)
    near["other"] = rows.run("succeeded", label="invoice 8")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"label": "invoice 7"}, "labelled"),
        ({"label": "x", "concurrency_key": "account:7", "concurrency_limit": 1}, "keyed"),
        ({"label": "x"}, "other"),
        ({}, "other"),
    ]
    for values, wanted in cases:
        found = _family(state, rows.run("dead", **values)).succeeded
        assert found is not None
        assert (found.id, bool(found.same_key)) == (near[wanted], wanted != "other")
    monkeypatch.setattr(detail, "OF_ALL", 4)
    found = _family(state, rows.run("dead", label="invoice 7")).succeeded
    assert found is None  # It is too far, and so are the others.


def test_relatives_of_an_enqueued_run_are_those_of_its_task(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = rows.run("succeeded")
    rows.run("succeeded", job_type="other")
    this = rows.run("dead")
    rows.run("succeeded", job_type="other")
    later = rows.run()
    assert _ids(_family(state, this)) == (good, later, good)
    monkeypatch.setattr(detail, "OF_ALL", 1)
    assert _ids(_family(state, this)) == (None, None, None)


def test_dead_runs_that_died_alike_are_counted_up_to_a_cap(
    state: State, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(run_id: int) -> str | None:
        facts = facts_of(view_of(state, run_id))
        return next((str(each.value) for each in facts if "died" in each.label), None)

    this = rows.run("dead", error_type="OSError")
    assert said(this) is None
    for kind in ("OSError", "OSError", "KeyError", None):
        rows.run("dead", error_type=kind)
    rows.run("dead", error_type="OSError", job_type="other")
    assert said(this) == "2 other runs"
    assert said(rows.run("dead")) == "1 other run"
    assert said(rows.run("queued")) is None
    monkeypatch.setattr(detail, "OF_DEAD", 7)
    assert said(this) == "2+ other runs"


def test_dead_runs_of_one_group_of_errors_are_alike(state: State, rows: Rows) -> None:
    this = rows.run("dead", error_type="OSError", fingerprint="a")
    for group in ("a", "b", None):
        rows.run("dead", error_type="OSError", fingerprint=group)
    (fact,) = [each for each in facts_of(view_of(state, this)) if "died" in each.label]
    assert (fact.text, fact.link) == (
        "1 other run",
        ("runs", {"status": "dead", "fingerprint": "a"}),
    )
