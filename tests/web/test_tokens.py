"""Pages and commands name workers without the secret part of the tokens of their claims."""

from __future__ import annotations

import pytest
from flask import Flask

from tests.rows import Rows

from .conftest import Pages

SECRET = "5ec2e7aa"
TOKEN = f"web-1:7:{SECRET}"


@pytest.fixture
def run_id(app: Flask, rows: Rows) -> int:
    """A run at work, which has failed before, and which is inside `once`."""
    app.debug = True
    run_id = rows.run("running", locked_by=TOKEN, attempts=2)
    rows.failure(run_id, 1, worker=TOKEN)
    rows.effect("effect", run_id=run_id, locked_by=TOKEN)
    return run_id


@pytest.mark.parametrize("form", ["", "format=json"])
@pytest.mark.parametrize("page", ["runs/{}", "runs?status=running&", "effects?", ""])
def test_no_page_shows_a_token(app: Flask, run_id: int, page: str, form: str) -> None:
    url = f"/jobs/{page.format(run_id)}"
    answer = app.test_client().get(url + ("" if "?" in url else "?") + form)
    assert answer.status_code == 200
    shown = answer.get_data(as_text=True)
    assert SECRET not in shown
    assert ("web-1:7" in shown) >= (page in ("runs/{}", "effects?"))


@pytest.mark.parametrize("command", ["show 1", "list", "effects"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_command_shows_a_token(pages: Pages, run_id: int, command: str, form: list[str]) -> None:
    args = command.replace("1", str(run_id)).split()
    result = pages.app.test_cli_runner().invoke(args=["jobs", "admin", *args, *form])
    assert result.exit_code == 0, result.output
    assert SECRET not in result.output
    assert ("web-1:7" in result.output) >= (args[0] == "show")
