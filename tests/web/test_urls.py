"""The URLs of a page are those of Flask's own ``url_for``."""

from __future__ import annotations

from typing import Any

from flask import Flask, url_for

from flask_cronjobs import CronJobs
from flask_cronjobs.web.render import page_urls


def test_urls_of_a_page_are_those_of_flask(app: Flask, jobs: CronJobs) -> None:
    @app.url_defaults
    def add_language(endpoint: str, values: dict[str, Any]) -> None:
        values.setdefault("language", "de")

    with app.test_request_context("/jobs/", base_url="http://jobs.example/under"):
        quick = page_urls()
        prefix = "cronjobs."
        for _ in range(2):
            for endpoint, values in (
                ("run", {"run_id": 1}),
                ("run", {"run_id": 10**18}),
                ("definition", {"name": "a/b c&d"}),
                ("runs", {"status": "dead", "task": "x"}),
                ("runs", {"task": "x"}),
                ("runs", {}),
            ):
                assert quick(prefix + endpoint, **values) == url_for(prefix + endpoint, **values)
