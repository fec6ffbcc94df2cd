"""Workers that die or freeze in the midst of a run: the lease brings the run back."""

from __future__ import annotations

import signal

from tests.process.support import Site


def test_killed_worker_s_run_is_redone_when_its_lease_has_ended_and_recorded_as_lost(
    site: Site,
) -> None:
    site.config["CRONJOBS_LEASE"] = 600
    run = site.enqueue("wait_once")
    tick = site.start_tick()
    site.wait_for("begun")
    tick.send(signal.SIGKILL)
    assert tick.wait().returncode == -signal.SIGKILL
    early = site.run_tick()
    # A slot may have come meanwhile, and with it runs of others.
    assert (early.returncode, early.stderr, "wait_once" in early.stdout) == (0, "", False)
    assert (site.run(run).status, site.run(run).attempts) == ("running", 1)
    site.expire()
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
