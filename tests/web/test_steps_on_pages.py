"""The steps on the page of a run."""

from __future__ import annotations

from datetime import timedelta

from .conftest import NOW, Pages


def test_a_run_shows_its_steps(pages: Pages) -> None:
    run_id = pages.add("dead")
    for name in ("totals", "<mail>"):
        pages.step(run_id, name, result={"password": "p4ss", "sum": 71})
    pages.shows(
        f"runs/{run_id}", "Steps", "&lt;mail&gt;", "71", "web-1:7", hides=["p4ss", ":token"],
    )  # fmt: skip
    pages.hide_payloads()
    pages.shows(f"runs/{run_id}", "totals", hides=["71"])


def test_a_run_that_waits_says_for_what(pages: Pages) -> None:
    later = NOW + timedelta(hours=1)
    run_id = pages.add("queued", run_at=later)
    pages.step(run_id, "approved", "wait", finished_at=None, due_at=later)
    pages.shows(
        f"runs/{run_id}", "It waits for the signal approved: it times out in ",
        "waits for a signal",
    )  # fmt: skip
