"""FAULTS: hosts whose clocks are wrong. The database's counts, so nothing is early, late or twice.

On PostgreSQL; SQLite's clock is that of the process, and hosts that share a file share a clock.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process import support
from tests.process.support import Site
from tests.process.test_races import make_slots_due

#: A host's clock is ahead by so much, another's behind, in seconds.
SKEW = 90


@pytest.fixture(scope="session")
def libfaketime() -> str:
    """The library that fakes a process's clock, which is installed first where apt-get may."""
    found = _library()
    if found is None and os.geteuid() == 0:
        for command in (["update"], ["install", "--yes", "libfaketime"]):
            subprocess.run(["apt-get", "--quiet", *command], capture_output=True)
        found = _library()
    if found is None:
        pytest.skip("libfaketime is not installed, and cannot be")
    return found


def _library() -> str | None:
    return next(
        (str(path) for path in Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1")), None
    )


@pytest.fixture
def site(postgresql_url: str, tmp_path: Path) -> Iterator[Site]:
    """A site on PostgreSQL."""
    with support.site(postgresql_url, tmp_path) as made:
        yield made


@pytest.fixture
def hosts(libfaketime: str) -> list[dict[str, str]]:
    """The environments of two hosts: one whose clock is ahead, and one whose is behind."""
    faked = {"LD_PRELOAD": libfaketime, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return [{**faked, "FAKETIME": f"{skew:+d}s"} for skew in (SKEW, -SKEW)]


def test_nothing_is_early_late_or_twice_where_hosts_clocks_are_wrong_and_they_are_warned(
    site: Site, hosts: list[dict[str, str]]
) -> None:
    """By less than what their clocks are off, each thing here is not due yet, or is just due."""
    ahead, _ = hosts
    held = site.enqueue("note")
    site.query(
        "UPDATE job_runs SET status = 'running', attempts = 1, locked_by = 'other:1:token',"
        " locked_until = clock_timestamp() + interval '75 seconds'"
    )
    early = site.enqueue("note")
    site.query(
        "UPDATE job_runs SET run_at = clock_timestamp() + interval '75 seconds' WHERE id = :id",
        id=early,
    )
    later = site.enqueue("later", {"delay": 75})
    assert site.run_tick(env=ahead).returncode == 0
    assert (site.run(held).status, site.run(held).locked_by) == ("running", "other:1:token")
    assert site.run(early).status == "queued"
    assert site.run(later).status == "failed"
    (delay,) = site.query(
        "SELECT extract(epoch FROM run_at - clock_timestamp()) AS left FROM job_runs"
        " WHERE status = 'failed'"
    )
    assert 0 < delay.left <= 75
    soon = "SELECT id FROM job_definitions WHERE next_run_at > clock_timestamp() + interval '1 min'"
    assert site.query(soon) == []

    make_slots_due(site)
    site.enqueue_many("note", [{}] * 5)
    ticks = [site.start_tick(env=host) for host in hosts]
    assert [tick.wait().returncode for tick in ticks] == [0, 0]
    assert site.query("SELECT id FROM job_runs WHERE scheduled_for > clock_timestamp()") == []
    assert site.query(soon) == []
    said = Counter((line["name"], line["slot"]) for line in site.trace("slot"))
    assert len({name for name, _ in said}) == 5
    assert set(said.values()) == {1}
    assert len(site.trace("note")) == 5
    forward, backward = [tick.errors for tick in ticks]
    assert re.search(r"This host's clock is [89]\d s ahead of the database's", forward)
    assert re.search(r"This host's clock is [89]\d s behind the database's", backward)
    rows = site.query("SELECT clock_offset FROM job_ticks")
    assert {round(row.clock_offset, -1) for row in rows} == {SKEW, -SKEW}
