"""FAULTS: killed after the effect, before the outcome: `once` and `atomic` repeat nothing."""

from __future__ import annotations

import pytest

from flask_cronjobs import EffectInDoubt
from tests.marks import on_sqlite
from tests.process.support import Site


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
    run_id = site.enqueue("killed_in_effect", {"key": "k", "in_doubt": policy}, max_attempts=2)
    assert site.run_tick().returncode == -9
    site.tick_until_done()
    assert site.run(run_id).status == status
    assert len(site.trace("effect")) == effects
    assert site.query("SELECT state FROM job_effects")[0].state == state
    if policy == "raise":
        assert site.failures(run_id) == ["WorkerLost", EffectInDoubt.__name__]
        assert "flask jobs admin effects --done" in site.run(run_id).last_error


def test_zombie_with_a_lost_lease_begins_no_effect(site: Site) -> None:
    """It does not even make a mark, which others would have to doubt."""
    gate = site.folder / "gate"
    run_id = site.enqueue("effect_after_sleep", {"key": "k", "path": str(gate)})
    site.config["CRONJOBS_LEASE"] = 300
    zombie = site.start_tick()
    site.wait_for("begun")
    # Another worker has it by now; the zombie has not noticed.
    site.query("UPDATE job_runs SET locked_by = 'other:1:token', attempts = 2")
    gate.touch()
    assert zombie.wait().returncode == 0
    assert site.trace("effect", "ended") == []
    assert site.query("SELECT * FROM job_effects") == []
    assert (site.run(run_id).status, site.run(run_id).locked_by) == ("running", "other:1:token")
    assert "lease lost" in zombie.errors


@on_sqlite
def test_effect_killed_before_the_session_committed_is_in_doubt(
    site: Site,
) -> None:
    """The payment's row and the result were in one transaction: neither is there."""
    run_id = site.enqueue("killed_before_payment_is_committed")
    assert site.run_tick().returncode == -9
    site.tick_until_done()
    assert len(site.trace("paid")) == 1
    assert site.query("SELECT * FROM entries") == []
    assert [row.state for row in site.query("SELECT state FROM job_effects")] == ["in_doubt"]
    assert (site.run(run_id).status, site.run(run_id).result) == ("succeeded", None)


def test_atomic_run_killed_before_the_commit_leaves_nothing(site: Site) -> None:
    run_id = site.enqueue("killed_before_commit", {"label": "x"})
    assert site.run_tick().returncode == -9
    assert len(site.trace("begun")) == 1
    assert site.query("SELECT * FROM entries") == []
    site.tick_until_done()
    assert [row.run_id for row in site.query("SELECT run_id FROM entries")] == [run_id]
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 2)


def test_atomic_success_survives_a_kill_after_the_commit(site: Site) -> None:
    run_id = site.enqueue("atomic_entry", {"label": "x"})
    done = site.run_tick(env={"CRONJOBS_CRASH_AT": "after-finalize"})
    assert done.returncode == -9
    site.tick_until_done()
    assert (site.run(run_id).status, site.run(run_id).attempts) == ("succeeded", 1)
    assert len(site.query("SELECT * FROM entries")) == 1
