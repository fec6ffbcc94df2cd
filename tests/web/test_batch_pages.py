"""The pages of batches and of keys in strict order, and what they let an operator do."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from flask_cronjobs.models import JobBatch
from tests.rows import ago

from .conftest import Pages

KEY = "weekly:<W47>"
PAGE = f"batch?key={quote(KEY)}"


@pytest.fixture
def batch(pages: Pages) -> str:
    """The key of a batch in which one run of three has died, and one waits."""
    with pages.app.app_context():
        remind, break_down = pages.jobs.get("remind"), pages.jobs.get("break_down")
        with pages.jobs.batch(KEY, then=remind):
            remind.enqueue()
            break_down.enqueue()
            remind.using(delay=3600).enqueue()
        pages.db.session.commit()
        pages.jobs.tick()
    return KEY


def statuses(pages: Pages) -> list[str]:
    return sorted(run.status for run in pages.runs() if run.batch_id is not None)


def test_batch_shows_how_far_it_is_and_leads_to_its_runs(pages: Pages, batch: str) -> None:
    pages.shows("batches", "weekly:&lt;", "2 of 3", "1 dead", "Cancel the rest")
    pages.shows(PAGE, "2 of 3 runs have ended.", "Retry the dead")
    runs = pages.shows(f"runs?batch={quote(batch)}&status=dead", "break_down")
    assert "remind" not in runs.partition("<ol")[2]
    pages.shows("runs/1", "/jobs/batch?key=weekly")
    pages.rights.discard("act")
    for path in ("batches", PAGE):
        pages.shows(path, "weekly", hides=["<button"])


def test_cancel_then_retry(pages: Pages, batch: str) -> None:
    said = pages.get(pages.post("/jobs/batches/cancel", key=batch).location).text
    assert "1 run of weekly:&lt;W47&gt; is cancelled." in said
    assert statuses(pages) == ["cancelled", "dead", "succeeded"]
    pages.shows(PAGE, "Retry the dead", hides=["Cancel the rest"])
    said = pages.get(pages.post("/jobs/batches/retry", key=batch).location).text
    assert "1 run of weekly:&lt;W47&gt; is queued again." in said
    assert statuses(pages) == ["cancelled", "queued", "succeeded"]


def test_close(pages: Pages) -> None:
    pages.shows("batches", "No batch is unfinished.")
    pages.insert(JobBatch(key="open"))
    pages.shows("batches", ">Close<")
    for said in ("open is closed.", "open was closed already."):
        assert said in pages.get(pages.post("/jobs/batches/close", key="open").location).text


# Keys in strict order


def test_page_says_which_keys_wait_and_why(pages: Pages) -> None:
    def ordered(
        key: str, status: str = "queued", order_mark: str | None = "waits", **values: Any
    ) -> int:
        strict = {"concurrency_key": key, "concurrency_limit": 1, "strict": True}
        return pages.run(status, **{**strict, "order_mark": order_mark, **values})

    pages.add(concurrency_key="plain", concurrency_limit=1)
    pages.shows("order", "No run of a task with a strict order waits or runs.")
    first = ordered("account:1", order_mark=None, run_at=ago(-3600))
    behind = [ordered("account:1") for _ in range(3)][-1]
    failed = ordered("account:2", "failed", None, run_at=ago(-300), attempts=1, job_type="remind")
    ordered("account:2")
    pages.shows(
        "order",
        *("account:<wbr>1", "3 waiting", "waits for its time: in", f"/jobs/runs/{failed}"),
    )
    pages.shows("order?after=0:999999", "There are no more keys")
    link = f'<a href="/jobs/runs/{first}">'
    pages.shows(f"runs/{behind}", link, hides=["The next tick runs it"])
