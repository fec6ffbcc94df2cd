"""What a handler printed is there also when its process is killed or ended."""

from __future__ import annotations

import signal

import pytest

from tests.process.support import Site, wait_until

pytestmark = pytest.mark.slow


def outputs(site: Site) -> list[tuple[int, str]]:
    rows = site.query("SELECT attempt, output FROM job_outputs ORDER BY attempt")
    return [(row.attempt, row.output) for row in rows]


def test_a_killed_process_leaves_what_was_printed_seconds_before(site: Site) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 600
    site.enqueue("speak_stubbornly")
    tick = site.start_tick()
    wait_until(lambda: outputs(site) == [(1, "last words\n")])
    tick.send(signal.SIGKILL)
    tick.wait()
    assert outputs(site) == [(1, "last words\n")]


def test_a_handler_whose_process_is_ended_leaves_what_it_printed(site: Site) -> None:
    run = site.enqueue("speak_stubbornly", max_attempts=1)
    site.run_tick()
    assert site.run(run).error_type == "TimedOut"
    assert outputs(site) == [(1, "last words\n")]
