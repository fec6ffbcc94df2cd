"""Workers that are killed, end or freeze in the middle of a run: the lease returns the run."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence

import pytest

from flask_cronjobs import EffectInDoubt
from tests.marks import on_postgresql, on_sqlite
from tests.process.support import Site, wait_until

LOG = {"JOBS_APP_LOG_LEVEL": "INFO"}


def test_killed_worker_s_run_is_redone_by_a_later_tick_and_recorded_as_lost(site: Site) -> None:
    run, tick = site.begin("wait_once")
    tick.end()
    assert site.run(run).status == "running"
    site.wait_for_expiry(run)

    later = site.run_tick()

    assert later.returncode == 0
    assert "WorkerLost: worker lost" in later.stdout
    assert [line["attempt"] for line in site.trace("redone")] == [2]
    assert (site.ends(run), site.run(run).last_error) == ({("succeeded", 2)}, None)
    (failure,) = site.query("SELECT * FROM job_failures")
    assert (failure.run_id, failure.attempt, failure.error_type) == (run, 1, "WorkerLost")
    assert failure.error.startswith("worker lost")
    assert f":{tick.pid}:" in failure.worker


@pytest.mark.parametrize(
    ("database_url", "how", "status"),
    [("sqlite", "0", 0), ("postgresql", "crash", -signal.SIGSEGV)],
    indirect=["database_url"],
)
def test_run_that_ends_its_process_comes_back_by_lease_and_not_before(
    site: Site, how: str, status: int
) -> None:
    """This holds even if its exit status says that it did all its work."""
    site.config["CRONJOBS_LEASE"] = 300
    run = site.enqueue("end_process", {"how": how})
    assert site.run_tick().returncode == status
    site.tick_here()
    assert site.ends(run) == {("running", 1)}
    site.expire()
    assert site.tick_here().reclaimed == 1
    assert (site.ends(run), site.failures(run)) == ({("succeeded", 2)}, ["WorkerLost"])


@pytest.mark.parametrize("most", [1, 2], ids=["neighbors on their last attempt", "neighbors"])
def test_run_that_kills_its_workers_takes_its_neighbors_along_once_at_most(
    site: Site, most: int
) -> None:
    """They are claimed together at their first attempt, and alone at their last one."""
    site.config["CRONJOBS_LEASE"] = 300
    killer = site.enqueue("kill_self", priority=1, max_attempts=2)
    neighbors = site.enqueue_many("note", [{}] * 100, max_attempts=most)
    for _ in range(2):
        site.enqueue_many("note", [{}] * 60, priority=2)  # Fast runs, so more are claimed ahead.
        assert site.run_tick().returncode == -signal.SIGKILL
        site.expire()
    site.tick_here()
    assert (site.run(killer).status, site.failures(killer)) == ("dead", ["WorkerLost"] * 2)
    assert site.ends(*neighbors) <= {("succeeded", n) for n in range(1, most + 1)}


@on_sqlite
def test_async_run_that_kills_its_workers_costs_the_others_no_last_attempt(site: Site) -> None:
    killer = site.enqueue("async_kill", max_attempts=3)
    beside = site.enqueue_many("async_wait", [{"path": "/", "seconds": 1}] * 6)
    last = site.enqueue_many("async_wait", [{"path": "/", "seconds": 1}] * 3, max_attempts=1)
    for _ in range(20):
        site.run_tick()
        site.expire()
        if site.statuses() == {"dead": 1, "succeeded": 9}:
            break
    assert site.failures(killer) == ["WorkerLost"] * 3
    assert site.ends(*beside) <= {("succeeded", 1), ("succeeded", 2)}
    assert site.ends(*last) == {("succeeded", 1)}


def test_kill_costs_each_async_run_one_attempt_and_no_effect_is_done_twice(site: Site) -> None:
    site.config["CRONJOBS_ASYNC_AT_ONCE"] = 20
    waiting = site.enqueue_many("async_wait", [{"path": str(site.gate)}] * 8)
    site.enqueue_many("async_effect", [{"key": f"k{number}"} for number in range(60)])
    tick = site.start_tick()
    site.wait_for("begun", 8)
    site.wait_for("effect", 11)
    tick.end()
    site.gate.touch()
    site.tick_until_done()
    assert site.statuses() == {"succeeded": 68}
    assert site.ends(*waiting) == {("succeeded", 2)}
    keys = [line["key"] for line in site.trace("effect")]
    assert len(keys) == len(set(keys))
    in_doubt = site.query("SELECT key FROM job_effects WHERE state <> 'done'")
    assert len(keys) >= 60 - len(in_doubt)
    rows = site.query("SELECT max(attempts) AS most FROM job_runs WHERE job_type <> 'on_schedule'")
    assert rows[0].most == 2


@on_postgresql
def test_handler_that_locks_its_own_row_is_interrupted_when_its_lease_ends(site: Site) -> None:
    """Its lease cannot be renewed, but the leases of others can."""
    run = site.enqueue("locks_its_own_row")
    result = site.run_tick()
    assert result.returncode == 0, result.stderr
    assert len(site.trace("interrupted")) == 1
    assert (site.ends(run), site.failures(run)) == ({("succeeded", 2)}, ["LeaseLost"])


# Processes that freeze, and wake when another worker has their run


@pytest.mark.parametrize("task", ["wait_for", "async_wait"])
def test_frozen_worker_s_late_outcomes_are_refused(site: Site, task: str) -> None:
    site.config["CRONJOBS_LEASE"] = 60  # Even on a slow machine, this is shorter than its watchdog.
    ids = site.enqueue_many(task, [{"path": str(site.gate)}] * (1 if task == "wait_for" else 3))
    zombie = site.start_tick(env=LOG)
    site.wait_for("begun", len(ids))
    zombie.send(signal.SIGSTOP)
    site.expire()
    site.gate.touch()
    assert site.run_tick().returncode == 0
    rows = [site.run(run) for run in ids]
    assert site.ends(*ids) == {("succeeded", 2)}
    zombie.send(signal.SIGCONT)
    result = zombie.wait()
    assert result.returncode == 0
    assert result.stderr.count(f"lease lost: task {task}") == len(ids)
    assert [site.run(run) for run in ids] == rows, "it wrote to runs that were not its own any more"
    assert [site.failures(run) for run in ids] == [["WorkerLost"]] * len(ids)
    assert site.query("SELECT sum(lost) AS lost FROM job_ticks")[0].lost == len(ids)


def test_frozen_worker_begins_nothing_that_it_had_claimed_and_lost(site: Site) -> None:
    site.config["CRONJOBS_LEASE"] = 6  # Its watchdog waits for three leases.
    ids = site.enqueue_many("note", [{}] * 200)
    holder, zombie = site.begin("wait_for", {"path": str(site.gate)}, priority=1)
    zombie.send(signal.SIGSTOP)
    site.wait_for_expiry(holder)
    site.gate.touch()
    assert site.run_tick().returncode == 0
    zombie.send(signal.SIGCONT)
    assert zombie.wait().returncode == 0
    assert site.statuses() == {"succeeded": 201}
    assert sorted(line["run"] for line in site.trace("note")) == ids


@pytest.mark.parametrize(
    ("task", "payload"), [("effect_after_wait", {}), ("tells", {"often": False})]
)
def test_zombie_with_a_lost_lease_begins_no_effect_and_reports_no_progress(
    site: Site, task: str, payload: dict[str, object]
) -> None:
    """It does not even make a mark, which would put the effect in doubt."""
    site.config["CRONJOBS_LEASE"] = 300
    run, zombie = site.begin(task, {"path": str(site.gate), **payload})
    # Another worker has it by now, and the zombie has not noticed.
    site.query("UPDATE job_runs SET locked_by = 'other:1:token', attempts = 2")
    site.gate.touch()
    assert zombie.wait().returncode == 0
    assert site.trace("effect", "ended") == []
    assert site.query("SELECT * FROM job_effects") == []
    row = site.run(run)
    assert (row.status, row.locked_by, row.progress) == ("running", "other:1:token", None)
    assert "lease lost" in zombie.errors


# A kill between the effect and the outcome: `once` and `atomic` repeat nothing


def effect_states(site: Site) -> Sequence[str]:
    return [row.state for row in site.query("SELECT state FROM job_effects")]


@pytest.mark.parametrize(
    ("policy", "status", "effects", "state"),
    [
        ("skip", "succeeded", 1, "in_doubt"),
        ("redo", "succeeded", 2, "done"),
        ("raise", "dead", 1, "in_doubt"),
    ],
)
def test_effect_whose_process_was_killed_in_the_midst_is_settled_as_its_policy_says(
    site: Site, policy: str, status: str, effects: int, state: str
) -> None:
    run = site.enqueue("killed_in_effect", {"in_doubt": policy}, max_attempts=2)
    assert site.run_tick().returncode == -9
    site.tick_until_done()
    assert site.run(run).status == status
    assert (len(site.trace("effect")), effect_states(site)) == (effects, [state])
    if policy == "raise":
        assert site.failures(run) == ["WorkerLost", EffectInDoubt.__name__]
        assert "flask jobs admin effects --done" in site.run(run).last_error


@on_sqlite
def test_effect_killed_before_the_session_committed_is_in_doubt(site: Site) -> None:
    """The payment's row and the result were in one transaction, so neither exists."""
    run = site.enqueue("killed_before_payment_is_committed")
    assert site.run_tick().returncode == -9
    site.tick_until_done()
    assert (len(site.trace("effect")), effect_states(site)) == (1, ["in_doubt"])
    assert site.query("SELECT * FROM entries") == []
    assert (site.run(run).status, site.run(run).result) == ("succeeded", None)


def test_atomic_run_killed_before_the_commit_leaves_nothing(site: Site) -> None:
    run = site.enqueue("killed_before_commit")
    assert site.run_tick().returncode == -9
    assert len(site.trace("begun")) == 1
    assert site.query("SELECT * FROM entries") == []
    site.tick_until_done()
    assert [row.run_id for row in site.query("SELECT run_id FROM entries")] == [run]
    assert site.ends(run) == {("succeeded", 2)}


# A long run of steps, whose workers are killed and stopped again and again


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
    """Start a tick, and end it after *more* steps, unless its budget ends it."""
    tick, until = site.start_tick(), done(site) + more
    wait_until(lambda: done(site) >= until or not tick.running)
    if how is not None and tick.running:
        tick.send(how)
    tick.wait()


def done(site: Site) -> int:
    """Return how many steps and chunks are done."""
    return int(site.query("SELECT count(*) AS number FROM entries")[0].number)
