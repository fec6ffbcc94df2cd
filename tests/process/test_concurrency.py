"""`concurrency=N` over processes: never more at once, in order, and free again after a kill."""

from __future__ import annotations

from collections import defaultdict

from tests.process.support import Site


def most_at_once(site: Site) -> dict[str, int]:
    """How many runs of each key were at work at once, at most, as their handlers said."""
    now: dict[str, int] = defaultdict(int)
    most: dict[str, int] = defaultdict(int)
    for line in sorted(site.trace("begun", "ended"), key=lambda line: line["at"]):
        now[line["key"]] += 1 if line["what"] == "begun" else -1
        most[line["key"]] = max(most[line["key"]], now[line["key"]])
    return most


def tick_until_all_ended(site: Site, number: int) -> None:
    for _ in range(20):
        ticks = [site.start_tick() for _ in range(3)]
        assert [tick.wait().returncode for tick in ticks] == [0, 0, 0]
        if len(site.trace("ended")) == number:
            return
    raise AssertionError(f"Not all ended: {site.statuses()}")


def test_never_more_than_two_of_a_key_are_at_work_over_three_ticks(site: Site) -> None:
    payloads = [{"key": key, "seconds": 0.03} for key in ("a", "b") for _ in range(15)]
    site.enqueue_many("two_at_a_time", payloads)
    tick_until_all_ended(site, 30)
    assert most_at_once(site).keys() == {"a", "b"}
    assert max(most_at_once(site).values()) <= 2


def test_runs_of_one_key_keep_their_order_while_ticks_race(site: Site) -> None:
    ids = {
        key: site.enqueue_many("one_at_a_time", [{"key": key, "seconds": 0.01}] * 15)
        for key in ("a", "b")
    }
    tick_until_all_ended(site, 30)
    for key in ("a", "b"):
        lines = [line for line in site.trace("begun", "ended") if line["key"] == key]
        assert [(line["what"], line["run"]) for line in lines] == [
            (what, id_) for id_ in ids[key] for what in ("begun", "ended")
        ]


def test_share_of_a_killed_worker_comes_free_with_its_lease(site: Site) -> None:
    site.config["CRONJOBS_LEASE"] = 300
    first, second = site.enqueue_many("one_at_a_time", [{"key": "k", "seconds": 300}] * 2)
    tick = site.start_tick()
    site.wait_for("begun")
    tick.end()
    site.query('UPDATE job_runs SET payload = \'{"key": "k"}\'')
    assert site.run_tick().returncode == 0
    assert (site.run(first).status, site.run(second).status) == ("running", "queued")
    site.expire()
    assert site.run_tick().returncode == 0
    assert (site.run(first).status, site.run(second).status) == ("succeeded", "succeeded")
    assert site.failures(first) == ["WorkerLost"]


def test_worker_killed_by_a_run_of_a_key_does_not_stop_the_others(site: Site) -> None:
    site.enqueue("killed_with_key", {"key": "k"}, max_attempts=1)
    site.enqueue_many("killed_with_key", [{"key": "k", "kill": False}] * 3)
    assert site.run_tick().returncode == -9
    site.tick_until_done()
    assert site.statuses() == {"dead": 1, "succeeded": 3}
