"""FAULTS: a long run of steps, whose workers are killed and stopped again and again."""

from __future__ import annotations

import random
import signal

from tests.process.support import Site, wait_until

STEPS, CHUNKS = 400, 600
WAYS = (signal.SIGKILL, signal.SIGTERM, None)


def test_each_of_a_thousand_steps_is_done_once(site: Site) -> None:
    choose = random.Random(21)
    site.config["CRONJOBS_TICK_BUDGET"] = 2
    run_id = site.enqueue("close_month", {"steps": STEPS, "chunks": CHUNKS})
    while done(site) < STEPS + CHUNKS:
        end(site, choose.randint(30, 300), choose.choice(WAYS))
        site.expire()
    site.tick_until_done()
    labels = [row.label for row in site.query("SELECT label FROM entries ORDER BY id")]
    expected = [f"s{n}" for n in range(STEPS)] + [f"c{n}" for n in range(1, CHUNKS + 1)]
    assert labels == expected
    run = site.run(run_id)
    assert run.status == "succeeded"
    killed = site.failures(run_id)
    assert run.attempts == len(killed) + 1
    assert set(killed) <= {"WorkerLost"}


def end(site: Site, more: int, how: signal.Signals | None) -> None:
    """Start a tick, and end it when so many more steps are done, unless it ends by its budget."""
    tick, until = site.start_tick(), done(site) + more
    wait_until(lambda: done(site) >= until or not tick.running)
    if how is not None and tick.running:
        tick.send(how)
    tick.wait()


def done(site: Site) -> int:
    """How many steps and chunks are done."""
    return int(site.query("SELECT count(*) AS number FROM entries")[0].number)
