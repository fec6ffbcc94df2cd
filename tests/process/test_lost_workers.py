"""Workers that die or freeze in the midst of a run: the lease brings the run back."""

from __future__ import annotations

import signal

import pytest

from tests.process.support import Site, wait_until

pytestmark = pytest.mark.slow


def test_killed_worker_s_run_is_redone_by_a_later_tick_and_recorded_as_lost(site: Site) -> None:
    run = site.enqueue("wait_once")
    tick = site.start_tick()
    site.wait_for("begun")
    tick.send(signal.SIGKILL)
    assert tick.wait().returncode == -signal.SIGKILL
    assert site.run(run).status == "running"
    site.wait_for_expiry(run)

    later = site.run_tick()

    assert later.returncode == 0
    assert "WorkerLost: worker lost" in later.stdout
    assert [line["attempt"] for line in site.trace("redone")] == [2]
    row = site.run(run)
    assert (row.status, row.attempts, row.last_error) == ("succeeded", 2, None)
    (failure,) = site.query("SELECT * FROM job_failures")
    assert (failure.run_id, failure.attempt) == (run, 1)
    assert failure.error_type == "WorkerLost"
    assert failure.error.startswith("worker lost")
    assert f":{tick.pid}:" in failure.worker


def test_run_of_a_killed_worker_is_left_alone_while_its_lease_holds(site: Site) -> None:
    site.config["CRONJOBS_LEASE"] = 600
    run = site.enqueue("wait_once")
    tick = site.start_tick()
    site.wait_for("begun")
    tick.send(signal.SIGKILL)
    tick.wait()

    later = site.run_tick()

    # A slot may have come meanwhile, and with it runs of others.
    assert (later.returncode, later.stderr, "wait_once" in later.stdout) == (0, "", False)
    assert (site.run(run).status, site.run(run).attempts) == ("running", 1)
    assert site.trace("redone") == []


def test_run_that_kills_every_worker_ends_dead_and_its_neighbors_succeed(site: Site) -> None:
    killer = site.enqueue("kill_self", max_attempts=3)
    good = site.enqueue_many("note", [{}] * 20)
    for _ in range(40):
        site.run_tick()
        if site.run(killer).status == "dead" and site.statuses().get("succeeded") == 20:
            break
        for row in site.query("SELECT id FROM job_runs WHERE status = 'running'"):
            site.wait_for_expiry(row.id)
    assert site.statuses() == {"dead": 1, "succeeded": 20}
    assert site.failures(killer) == ["WorkerLost"] * 3
    attempts = site.query("SELECT id, attempts FROM job_runs WHERE job_type = 'note'")
    assert {row.id for row in attempts} == set(good)
    assert {row.attempts for row in attempts} <= {1, 2}


def test_frozen_worker_s_late_write_is_refused(site: Site) -> None:
    gate = site.folder / "gate"
    site.config["CRONJOBS_LEASE"] = 60  # However slow this machine, shorter than its watchdog.
    run = site.enqueue("wait_for", {"path": str(gate)})
    zombie = site.start_tick(env={"JOBS_APP_LOG_LEVEL": "INFO"})
    site.wait_for("begun")
    zombie.send(signal.SIGSTOP)
    site.expire()
    gate.touch()

    assert site.run_tick().returncode == 0
    row = site.run(run)
    assert (row.status, row.attempts) == ("succeeded", 2)
    zombie.send(signal.SIGCONT)

    done = zombie.wait()
    assert "lease lost: task wait_for" in done.stderr
    assert done.returncode == 0
    after = site.run(run)
    assert after == row, "the zombie has written to a run that was not its own any more"
    assert site.failures(run) == ["WorkerLost"]
    assert site.query("SELECT sum(lost) AS lost FROM job_ticks")[0].lost == 1


def test_frozen_worker_s_late_failure_is_refused(site: Site) -> None:
    run = site.enqueue("too_long", {"seconds": 60})
    site.config |= {"CRONJOBS_SHUTDOWN_GRACE": 60, "CRONJOBS_LEASE": 60}
    zombie = site.start_tick(env={"JOBS_APP_LOG_LEVEL": "INFO"})
    site.wait_for("begun")
    zombie.send(signal.SIGSTOP)
    site.expire()
    site.query("UPDATE job_runs SET max_attempts = 2")

    assert site.run_tick().returncode == 0  # Reclaims, tries again, times out: dead.
    row = site.run(run)
    assert (row.status, row.error_type) == ("dead", "TimedOut")
    zombie.send(signal.SIGCONT)

    assert "lease lost: task too_long" in zombie.wait().stderr
    assert site.run(run) == row
    assert site.failures(run) == ["WorkerLost", "TimedOut"]


def test_frozen_worker_begins_nothing_that_it_had_claimed_and_lost(site: Site) -> None:
    gate = site.folder / "gate"
    site.config["CRONJOBS_LEASE"] = 6  # Its watchdog burns for three.
    ids = site.enqueue_many("note", [{}] * 200)
    holder = site.enqueue("wait_for", {"path": str(gate)}, priority=1)
    zombie = site.start_tick()
    site.wait_for("begun")
    zombie.send(signal.SIGSTOP)
    site.wait_for_expiry(holder)
    gate.touch()
    assert site.run_tick().returncode == 0
    zombie.send(signal.SIGCONT)
    assert zombie.wait().returncode == 0
    assert site.statuses() == {"succeeded": 201}
    said = [line["run"] for line in site.trace("note")]
    assert sorted(said) == ids


def test_lease_is_renewed_while_a_handler_works(site: Site) -> None:
    gate = site.folder / "gate"
    run = site.enqueue("wait_for", {"path": str(gate)})
    tick = site.start_tick()
    site.wait_for("begun")
    first = site.run(run).locked_until
    wait_until(lambda: site.run(run).locked_until > first)
    gate.touch()
    assert tick.wait().returncode == 0
    assert (site.run(run).status, site.run(run).attempts) == ("succeeded", 1)
