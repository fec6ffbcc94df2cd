"""Build the URLs of one page quickly: a page may have hundreds, most of them alike."""

from __future__ import annotations

from collections.abc import Callable

from flask import url_for

from .params import MAX_ID


def page_urls() -> Callable[..., str]:
    """Return ``url_for`` for one page: it builds a URL once, and those of runs from a pattern."""
    known: dict[tuple[object, ...], str] = {}

    def page_url(endpoint: str, **values: object) -> str:
        run_id = values.get("run_id")
        if run_id is not None:
            values["run_id"] = MAX_ID
        key = (endpoint, *values.items())
        url = known.get(key)
        if url is None:
            url = known[key] = url_for(endpoint, **values)  # type: ignore[arg-type]
        return url if run_id is None else url.replace(str(MAX_ID), str(run_id))

    return page_url
