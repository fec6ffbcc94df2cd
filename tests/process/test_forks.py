"""FAULTS: forked workers of an app that is connected already, and what becomes of its connection.

Two processes on one socket read each other's answers, or wait for them for ever; and a child that
closes its copy politely ends the parent's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import support
from tests.process.support import Site


@pytest.fixture
def site(postgresql_url: str, tmp_path: Path) -> Iterator[Site]:
    """A site on PostgreSQL, whose app holds pooled connections when its tick begins."""
    with support.site(postgresql_url, tmp_path) as made:
        made.env["JOBS_APP_CONNECTED"] = "2"
        yield made


def test_workers_share_no_connection_with_the_process_that_forked_them(site: Site) -> None:
    ids = site.enqueue_many("entry_of_backend", [{"label": str(n)} for n in range(60)])
    done = site.run_tick("--workers", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert site.statuses() == {"succeeded": 60}
    assert Counter(row.run_id for row in site.query("SELECT run_id FROM entries")) == Counter(ids)
    before, after = site.trace("connected")
    assert len(set(before["backends"])) == 2
    assert (after["pid"], after["backends"]) == (before["pid"], before["backends"])
    used = {(line["pid"], line["backend"]) for line in site.trace("note")}
    backends = [backend for _, backend in used]
    assert not set(backends) & set(before["backends"])
    assert len(set(backends)) == len(backends)
