"""The time zone of a page: one for all of its times, which the user may change."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode

from flask import Response, request, url_for

from ..errors import ScheduleError
from ..schedule.cron_text import parse_zone
from .params import BadQuery, text

#: The choice to show times in the zone of the schedule that a page is about.
SCHEDULE = "schedule"
_COOKIE = "cronjobs_zone"
_AGE = 365 * 86400


def page_zone(own: Iterable[str | None], default: str) -> str:
    """Return the zone of the current page: the one that the user chose, or the schedules'.

    :param own: the zones of the schedules on the page.
    :param default: the zone where they have none, or different ones.
    :raises BadQuery: the parameter ``zone`` is no zone.
    """
    chosen = _chosen()
    if chosen != SCHEDULE:
        return chosen
    zones = {zone for zone in own if zone is not None and _is_zone(zone)}
    return zones.pop() if len(zones) == 1 else default


def switches(shown: str) -> dict[str, str]:
    """Return the other zones that a page in the zone *shown* offers, each with the page's URL."""
    others = [SCHEDULE] if _chosen() != SCHEDULE else []
    if shown != "UTC":
        others.append("UTC")
    return {name: _url(name) for name in others}


def keep(response: Response, path: str) -> None:
    """Let *response* keep the zone that the URL names, for the pages under *path*."""
    if "zone" in request.args:
        response.set_cookie(
            _COOKIE, _chosen(), max_age=_AGE, path=path, secure=request.is_secure, httponly=True,
            samesite="Lax",
        )  # fmt: skip


def _chosen() -> str:
    """Return the zone of the URL, else that of the cookie, else `SCHEDULE`."""
    given = text(request.args, "zone")
    if given is not None:
        if given != SCHEDULE and not _is_zone(given):
            raise BadQuery("zone must be 'schedule', or a time zone such as Europe/Berlin.")
        return given
    kept = request.cookies.get(_COOKIE, SCHEDULE)
    return kept if _is_zone(kept) else SCHEDULE


@lru_cache(maxsize=256)
def _is_zone(name: str) -> bool:
    try:
        parse_zone(name)
    except ScheduleError:
        return False
    return True


def _url(zone: str) -> str:
    """Return the URL of the current page with *zone*."""
    here = url_for(request.endpoint or ".overview", **(request.view_args or {}))
    path, _, added = here.partition("?")
    # The app's url_defaults may add to the query.
    pairs = dict.fromkeys([*parse_qsl(added), *request.args.items(multi=True)])
    others = [pair for pair in pairs if pair[0] != "zone"]
    return f"{path}?{urlencode([*others, ('zone', zone)])}"
