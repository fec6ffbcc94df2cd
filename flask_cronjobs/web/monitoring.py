"""The routes for machines: a tick by URL, health for a monitor, metrics for Prometheus.

The route of health is open, so requests to it could occupy the database and all threads. Therefore
only one request checks the health at a time, and the others get the last answer.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from types import SimpleNamespace
from typing import Any

from flask import Response, abort, current_app, request
from flask.typing import ResponseReturnValue

from ..core.app_state import State, state_of
from ..core.tick import TickOptions
from ..core.tick import tick as run_tick
from ..errors import CronJobsError
from ..insights.health import read_figures, read_verdict
from ..insights.health_checks import CHECKS
from ..insights.reader import Reader, reading
from ..insights.tick_views import read_activity
from ..log import logger
from ..text.humanize import seconds_since
from ..types import TickReport
from .params import clamped

#: While a check runs, other requests get the last answer for this many seconds, then ``down``. If
#: there is no last answer, they wait this long for the first one.
LIMIT_SECONDS = 5.0


class HealthLook:
    """Checks the health for all requests of a process, one check at a time. It is thread-safe.

    :param look: returns the status, and never raises an error.
    """

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._last = ""
        self._began = 0.0

    def status(self) -> str:
        """Return the status.

        While another request checks, return the last status, or ``down`` if the check takes longer
        than `LIMIT_SECONDS` seconds.
        """
        if not self._lock.acquire(timeout=0 if self._last else LIMIT_SECONDS):
            return self._last if time.monotonic() < self._began + LIMIT_SECONDS else "down"
        try:
            self._began = time.monotonic()
            self._last = self._look()
            return self._last
        finally:
            self._lock.release()


def tick() -> ResponseReturnValue:
    """Run one tick in this request and return its report; the guard has checked the token.

    A process runs one tick at a time, so that ticks cannot occupy all threads; a second request
    gets 409. ``?budget=SECONDS`` shortens the tick, for platforms that end long requests.
    """
    state = state_of()
    extensions: dict[str, Any] = current_app.extensions
    # A forked process needs its own lock: one that was held at the fork would stay held.
    running: threading.Lock = extensions.setdefault(
        f"cronjobs.tick:{os.getpid()}", threading.Lock()
    )
    longest = int(state.settings.tick_budget) or 1
    budget = clamped(request.args, "budget", longest, longest)
    if not running.acquire(blocking=False):
        return _json(409, error="A tick by URL is running in this process already.")
    try:
        # In a new context, handlers see neither the request nor its token.
        report = Context().run(_tick, state, TickOptions(budget=budget))
    except CronJobsError as error:
        logger.error("The tick by URL could not do its work: %s", error)
        return _json(503, error="The tick could not do its work. The log says why.")
    finally:
        running.release()
    return _json(200, **report._asdict())


def _json(status: int, **values: object) -> Response:
    """Return *values* as JSON, without the app's own JSON provider."""
    return Response(f"{json.dumps(values)}\n", status, mimetype="application/json")


def _tick(state: State, options: TickOptions) -> TickReport:
    with state.app.app_context():
        return run_tick(state, options)


def health() -> ResponseReturnValue:
    """Return 200 ``ok``, or 503 and ``never``, ``late``, ``overdue`` or, on an error, ``down``."""
    state = state_of()
    extensions: dict[str, Any] = current_app.extensions
    # A forked process needs its own lock: one that was held at the fork would stay held.
    look: HealthLook = extensions.setdefault(
        f"cronjobs.health:{os.getpid()}", HealthLook(lambda: _health(state))
    )
    status = look.status()
    return Response(f"{status}\n", 200 if status == "ok" else 503, mimetype="text/plain")


def _health(state: State) -> str:
    try:
        return read_verdict(state, only_errors=True).word
    except Exception as error:
        # Report any error to the monitor, but no details, since the route is open.
        logger.error("Health could not be read: %s: %s", type(error).__name__, error)
        return "down"


_FIGURES = {
    "oldest_due_seconds": "Seconds for which the oldest runnable run has been due",
    "running_runs": "Runs that a worker is running; counting stops at 1,000",
    "handed_runs": "Runs that wait in executors' brokers; counting stops at 1,000",
}
_OUTCOMES = ("succeeded", "failed", "dead", "cancelled", "skipped")


def metrics() -> ResponseReturnValue:
    """Return the metrics, in the format that the scraper asks for."""
    try:
        from prometheus_client.exposition import choose_encoder
    except ImportError:
        abort(501, "Metrics need prometheus-client: pip install 'Flask-CronJobs[metrics]'")
    with reading(state_of()) as reader:
        families = list(_gauges(reader))
    try:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    except (TypeError, ValueError):  # The scraper asks for a version that does not exist.
        encode, content_type = choose_encoder("")
    # prometheus_client needs only this method of a registry.
    registry: Any = SimpleNamespace(collect=lambda: families)
    return Response(encode(registry), content_type=content_type)


def _gauges(reader: Reader) -> Iterator[Any]:
    """Yield the gauges: a few figures, and the findings of each check."""
    verdict = read_verdict(reader)
    yield _gauge("healthy", "1 if ticks run and work is claimed in time", {(): verdict.ok})
    if verdict.age is not None:
        text = "Seconds since a tick was last seen alive"
        yield _gauge("last_tick_age_seconds", text, {(): verdict.age})
    for name, value in read_figures(reader).items():
        yield _gauge(name, _FIGURES[name], {(): value})
    numbers, ages = Counter({(check.id,): 0 for check in CHECKS}), dict[Any, float]()
    for finding in verdict.findings:
        numbers[finding.id,] += finding.number
        if finding.since is not None:
            age = seconds_since(finding.since, reader.now)
            ages[finding.id,] = max(age, ages.get((finding.id,), 0.0))
    yield _gauge("findings", "Problems that a check has found", numbers, "id")
    text = "Seconds since the oldest problem of a check began"
    yield _gauge("finding_age_seconds", text, ages, "id")
    # This is a gauge, since ticks are kept for only a day, so the sum can fall.
    text = "Outcomes recorded by the ticks of the last 24 hours"
    day = read_activity(reader)
    sums = {(kind,): sum(getattr(hour, kind) for hour in day) for kind in _OUTCOMES}
    yield _gauge("outcomes_24h", text, sums, "outcome")


def _gauge(name: str, text: str, values: Mapping[Any, float], *labels: str) -> Any:
    """Return a gauge; *values* has a number for each tuple of values of its *labels*."""
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily(f"cronjobs_{name}", text, labels=labels)
    for label_values, value in values.items():
        gauge.add_metric(label_values, value)
    return gauge
