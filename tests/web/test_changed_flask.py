"""The pages in apps that change Flask: its templates, its context or its CSRF token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from jinja2 import StrictUndefined

from .conftest import OWN, Pages

#: The text that the app returns instead of everything.
THEIRS = "theirs, not ours"
#: The names that our templates use, and some that they do not.
NAMES = ("say", "content", "zone", "now", "url_for", "message", "request", "range", "dict", "row")


def _delimiters(app: Flask, folder: Path) -> None:
    for kind, pair in {"variable": "[]", "block": "(%", "comment": "<#"}.items():
        setattr(app.jinja_env, f"{kind}_start_string", pair[0] * 2)
        setattr(app.jinja_env, f"{kind}_end_string", pair[1] * 2)


def _names(app: Flask, folder: Path) -> None:
    app.jinja_env.undefined = StrictUndefined
    for name in ("length", "join", "e", "escape", "capitalize", "list", "sum", "map"):
        app.jinja_env.filters[name] = lambda *args, **more: THEIRS
        app.jinja_env.tests[name] = lambda *args, **more: False
    app.jinja_env.globals.update(dict.fromkeys(NAMES, THEIRS))
    app.context_processor(lambda: dict.fromkeys(NAMES, THEIRS))
    app.jinja_env.finalize = lambda value: THEIRS


def _context(app: Flask, folder: Path) -> None:
    @app.context_processor
    def menu() -> dict[str, Any]:
        raise KeyError("lang")


def _templates(app: Flask, folder: Path) -> None:
    (folder / "cronjobs").mkdir()
    for name in ("base", "parts", "failure", "status"):
        (folder / "cronjobs" / f"{name}.html").write_text(THEIRS)
    app.template_folder = str(folder)


def _token(app: Flask, folder: Path) -> None:
    def csrf_token() -> str:
        raise RuntimeError("A secret key is required to use CSRF.")

    app.jinja_env.globals["csrf_token"] = csrf_token


def _trim(app: Flask, folder: Path) -> None:
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.line_statement_prefix = "-"
    app.jinja_env.autoescape = False


CHANGES = (_delimiters, _names, _context, _templates, _token, _trim)


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_that_an_app_changes_reaches_the_pages(
    pages: Pages, tmp_path: Path, change: Callable[[Flask, Path], None]
) -> None:
    run_id = pages.run("dead", job_type="break_down", last_error="{{ 7 * 7 }} [[ 7 ]]")
    change(pages.app, tmp_path)
    paths = ("", "runs", "workers", f"runs/{run_id}", f"runs/{run_id}/edit", "run?name=remind")
    for path in paths:
        text = pages.text(path)
        assert THEIRS not in text
        assert text.count('href="/jobs/runs"') >= 1
        assert "{%" not in text
    assert "{{ 7 * 7 }} [[ 7 ]]" in pages.text(f"runs/{run_id}")
    missing = pages.get("/jobs/runs/999999")
    assert (missing.status_code, THEIRS in missing.text) == (404, False)
    assert 'href="/jobs/runs"' in missing.text
    assert pages.client.post(f"/jobs/runs/{run_id}/retry", headers=OWN).status_code == 303
