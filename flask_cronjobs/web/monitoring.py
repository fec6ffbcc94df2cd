"""The routes for machines: a tick by URL, health for a monitor, metrics for Prometheus.

The route of health is open: without limits, requests to it could occupy the database and all
threads. So there is one look at a time, limited in time, and kept for a few seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextvars import Context
from typing import TYPE_CHECKING, Any

from flask import Response, abort, current_app, jsonify, request
from flask.typing import ResponseReturnValue

from ..engine.tick import TickOptions
from ..engine.tick import tick as run_tick
from ..errors import CronJobsError
from ..jobs.health import Figures, Verdict, read_verdict, read_verdict_and_figures
from ..jobs.pruning import seconds_behind
from ..jobs.reader import reading
from ..jobs.state import State, state_of
from ..jobs.ticks import Bucket, read_activity
from ..log import logger
from ..types import TickReport
from .params import clamped

#: For how many seconds an answer is kept.
KEEP = 3.0
#: After how many seconds a request gives up on a look. Monitors seldom wait for longer than ten.
LIMIT = 5.0
#: After how many seconds another look begins beside one that hangs, and how many may hang at once.
HANGS = 30.0
MOST_HANGING = 3


class HealthCache:
    """Calls a function in a thread of its own, for all requests of a process. Thread-safe.

    :param look: returns the status, and never raises.
    """

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._last: Future[str] | None = None
        self._began = self._ended = 0.0
        self._running = 0

    def status(self) -> str:
        """Return the status, at most `KEEP` seconds old; ``down`` if there is none in time."""
        with self._lock:
            if self._is_needed() and self._running < MOST_HANGING:
                self._begin()
            last, left = self._last, self._began + LIMIT - time.monotonic()
        try:
            return last.result(max(left, 0.0)) if last is not None else "down"
        except Late:
            return "down"

    def _is_needed(self) -> bool:
        if self._last is None:
            return True
        now = time.monotonic()
        return now >= self._ended + KEEP if self._last.done() else now >= self._began + HANGS

    def _begin(self) -> None:
        self._last = Future()
        self._began = time.monotonic()
        thread = threading.Thread(
            target=self._run, args=(self._last,), name="cronjobs-health", daemon=True
        )
        thread.start()
        self._running += 1

    def _run(self, future: Future[str]) -> None:
        try:
            status = self._look()
        finally:
            with self._lock:
                self._running -= 1
                self._ended = time.monotonic()
        future.set_result(status)


if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def tick() -> ResponseReturnValue:
    """Run one tick in this request and return its report; the guard has checked the token.

    One runs at a time in a process, so that ticks cannot occupy all threads: a second one gets 409.
    ``?budget=SECONDS`` shortens the tick, for platforms that end long requests.
    """
    state = state_of()
    kept: dict[str, Any] = current_app.extensions
    # A forked process needs its own: a lock that was held at the fork would stay so.
    running: threading.Lock = kept.setdefault(f"cronjobs.tick:{os.getpid()}", threading.Lock())
    longest = int(state.settings.tick_budget) or 1
    budget = clamped(request.args, "budget", longest, longest)
    if not running.acquire(blocking=False):
        return jsonify(error="A tick by URL is running in this process already."), 409
    try:
        # A new context, so that handlers see neither the request nor its token.
        done = Context().run(_tick, state, TickOptions(budget=budget))
    except CronJobsError as error:
        logger.error("The tick by URL could not do its work: %s", error)
        return jsonify(error="The tick could not do its work. The log says why."), 503
    finally:
        running.release()
    return jsonify(done._asdict())


def _tick(state: State, options: TickOptions) -> TickReport:
    with state.app.app_context():
        return run_tick(state, options)


def health() -> ResponseReturnValue:
    """Return 200 ``ok``, or 503 and ``never``, ``late``, ``overdue`` or, on an error, ``down``."""
    state = state_of()
    kept: dict[str, Any] = current_app.extensions
    # A forked process needs its own: threads are not forked.
    cache: HealthCache = kept.setdefault(
        f"cronjobs.health:{os.getpid()}", HealthCache(lambda: _health(state))
    )
    status = cache.status()
    return Response(f"{status}\n", 200 if status == "ok" else 503, mimetype="text/plain")


def _health(state: State) -> str:
    try:
        return read_verdict(state).word
    except Exception as error:
        # Report any error to the monitor, but no details: the route is open.
        logger.error("Health could not be read: %s: %s", type(error).__name__, error)
        return "down"


_OUTCOMES = ("succeeded", "failed", "dead", "cancelled", "skipped")


def metrics() -> ResponseReturnValue:
    """Return the figures of the overview, in the format that the scraper asks for."""
    try:
        from prometheus_client.exposition import choose_encoder
    except ImportError:
        abort(501, "Metrics need prometheus-client: pip install 'Flask-CronJobs[metrics]'")
    with reading(state_of()) as reader:
        verdict, figures = read_verdict_and_figures(reader)
        activity = read_activity(reader)
        unpruned = seconds_behind(reader)
    try:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    except (TypeError, ValueError):  # It asks for a version that does not exist.
        encode, content_type = choose_encoder("")
    return Response(
        encode(_registry(verdict, figures, activity, unpruned)), content_type=content_type
    )


def _registry(
    verdict: Verdict, figures: Figures, activity: Iterable[Bucket], unpruned: float
) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry, Gauge

    registry = CollectorRegistry()
    behind = ("prune_behind_seconds", "Seconds since the oldest row was to be pruned", unpruned)
    for name, text, value in (*_gauges(verdict, figures), behind):
        if value is not None:
            Gauge(f"cronjobs_{name}", text, registry=registry).set(value)
    paused = Gauge(
        "cronjobs_paused_seconds",
        "Seconds for which a task or a queue has been paused",
        ["kind", "name"],
        registry=registry,
    )
    for pause in verdict.pauses:
        age = (verdict.now - pause.paused_at).total_seconds()
        paused.labels(pause.kind, pause.name).set(max(age, 0.0))
    stalled = Gauge(
        "cronjobs_stalled_seconds",
        "Seconds for which work has stood still that waits for what does not come",
        ["kind"],
        registry=registry,
    )
    for each in verdict.stalled:
        stalled.labels(each.kind).set(each.seconds)
    # A gauge, not a counter: ticks are kept for a day only, so the sum can fall.
    day = Gauge(
        "cronjobs_outcomes_24h",
        "Outcomes recorded by the ticks of the last 24 hours",
        ["outcome"],
        registry=registry,
    )
    buckets = tuple(activity)
    for outcome in _OUTCOMES:
        day.labels(outcome).set(sum(getattr(bucket, outcome) for bucket in buckets))
    return registry


def _gauges(verdict: Verdict, figures: Figures) -> Iterable[tuple[str, str, float | None]]:
    """Return name, meaning and value; counts stop at their cap."""
    yield "healthy", "1 if ticks come and work is claimed in time", float(verdict.ok)
    yield "last_tick_age_seconds", "Seconds since a tick was last seen alive", verdict.age
    oldest = figures.oldest or 0.0
    yield "oldest_due_seconds", "Seconds for which the oldest runnable run has been due", oldest
    yield "overdue_runs", "Runnable runs that have waited too long", figures.overdue.value
    yield "running_runs", "Runs that a worker is running", figures.running.value
    yield "stale_runs", "Running runs whose lease ran out", figures.stale.value
    handed = None if figures.handed is None else float(figures.handed.value)
    yield "handed_runs", "Runs that wait in the brokers of executors", handed
    late = 0.0 if verdict.late is None else float(verdict.late.count.value)
    yield "late_definitions", "Definitions whose slots no tick records", late
    missed = 0.0 if figures.missed is None else float(figures.missed.slots)
    yield "missed_slots_24h", "Slots recorded as missed in the last 24 hours", missed
    yield "dead_runs_24h", "Runs that ended dead in the last 24 hours", figures.dead.value
