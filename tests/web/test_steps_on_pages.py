"""The steps on the page of a run, and the button that goes on from one of them."""

from __future__ import annotations

from datetime import timedelta

from .conftest import NOW, Pages


def test_a_run_shows_its_steps(pages: Pages) -> None:
    run_id = pages.add("dead")
    for name in ("totals", "<mail>"):
        pages.step(run_id, name, result={"password": "p4ss", "sum": 71})
    page = pages.shows(
        f"runs/{run_id}", "Steps", "&lt;mail&gt;", "71", "web-1:7", "Go on from here",
        "It is done again, with the 1 step behind it.", hides=["p4ss", ":token"],
    )  # fmt: skip
    assert page.count("Go on from here") == 2
    assert [step["name"] for step in pages.data(f"runs/{run_id}")["steps"]] == ["totals", "<mail>"]
    pages.hide_payloads()
    pages.shows(f"runs/{run_id}", "totals", hides=["71"])
    assert pages.data(f"runs/{run_id}")["steps"][0]["result"] is None
    pages.rights.discard("act")
    pages.shows(f"runs/{run_id}", "totals", hides=["Go on from here"])


def test_a_run_that_waits_says_for_what(pages: Pages) -> None:
    later = NOW + timedelta(hours=1)
    run_id = pages.add("queued", run_at=later)
    pages.step(run_id, "approved", "wait", finished_at=None, due_at=later)
    pages.shows(
        f"runs/{run_id}", "It waits for the signal approved: it times out in ",
        "waits for a signal", hides=["Go on from here"],
    )  # fmt: skip


def test_a_run_goes_on_from_a_step(pages: Pages) -> None:
    run_id = pages.add("dead")
    for name in ("totals", "invoices", "mail"):
        pages.step(run_id, name)
    answer = pages.post(f"/jobs/runs/{run_id}/retry", step="invoices")
    assert pages.said(answer) == (
        f"Run {run_id} is queued again. Done again: invoices, mail. What they did in the database "
        "is still there."
    )
    assert pages.status(run_id) == "queued"
    pages.shows(f"runs/{run_id}", "Sent back to step invoices")
    assert [step["name"] for step in pages.data(f"runs/{run_id}")["steps"]] == ["totals"]
    refused = pages.said(pages.post(f"/jobs/runs/{run_id}/retry", step="totals"))
    assert refused.startswith("Nothing was changed.")
