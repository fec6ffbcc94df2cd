"""The code in the README and in the docs runs as shown."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import Any

import click
import pytest
from flask import Flask
from flask_login import LoginManager  # type: ignore[import-untyped]

from flask_cronjobs import CronJobs
from flask_cronjobs.cli import jobs_group
from flask_cronjobs.config import Settings
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.testing import drain, fire, travel

from .pages import PAGES, ROOT, blocks, dispose, named, prelude

#: Pages whose blocks are one app, pages whose blocks continue the app of `prelude` together, and
#: pages in which each block continues it alone.
WHOLE = ["README.md"]
CONTINUED = [
    "tasks.md",
    "steps.md",
    "arguments.md",
    "keys.md",
    "limits.md",
    "async.md",
    "batches.md",
    "schedules.md",
    "deploying.md",
    "configuration.md",
    "changing-code.md",
    "several-apps.md",
    "containers.md",
    "outgrowing.md",
]
IN_PIECES = ["pages.md"]
#: A page whose blocks are an app each.
APPS = ["databases.md"]
#: Pages that each move the same shop here from another package.
MOVED = [
    "from-celery.md",
    "from-flask-apscheduler.md",
    "from-huey.md",
    "from-rq.md",
]
#: Pages with tests of their own: see `test_quickstart`, `test_tutorial`, `test_alerting` and
#: `test_testing_page`.
ELSEWHERE = ["quickstart.md", "tutorial.md", "alerting.md", "testing.md"]


def codes(page: Path) -> list[CodeType]:
    return [block.code for block in blocks(page, "python")]


def test_every_page_with_python_is_run() -> None:
    run = {*WHOLE, *CONTINUED, *IN_PIECES, *APPS, *MOVED, *ELSEWHERE}
    assert {page.name for page in PAGES if codes(page)} == run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pages run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", WHOLE)
def test_app_of_the_page_starts_takes_a_request_and_ticks(name: str) -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    for code in codes(named(name)):
        exec(code, names)  # There is no app context, just as when `flask` imports it.
    app = names["app"]
    with app.app_context():
        names["db"].create_all()
    assert app.test_client().post("/sign-up").status_code == 200
    with app.app_context():
        assert CronJobs().tick().succeeded == 1
    dispose(names)


@pytest.mark.parametrize("name", CONTINUED)
def test_python_of_the_page_runs_from_top_to_bottom(name: str) -> None:
    names = prelude()
    names["jobs"] = CronJobs(names["app"])
    examples = codes(named(name))
    assert examples
    for code in examples:
        with names["app"].app_context():
            names["db"].create_all()
            exec(code, names)
    for test in [value for key, value in names.items() if key.startswith("test_")]:
        test()
    with names["app"].app_context():
        # A tick can do the work that the page has enqueued and scheduled.
        CronJobs().tick()
    dispose(names)


@pytest.mark.parametrize("name", APPS)
def test_each_app_of_the_page_ticks(name: str, folder: Path) -> None:
    for code in codes(named(name)):
        names: dict[str, Any] = {"__name__": "shop"}
        exec(code, names)
        with names["app"].app_context():
            assert names["jobs"].tick().succeeded == 1
            state_of().engine.dispose()
        (folder / "shop.sqlite").unlink(missing_ok=True)


@pytest.mark.parametrize("name", MOVED)
def test_shop_that_moved_here_does_its_work(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = codes(named(name))
    names: dict[str, Any] = {"__name__": "shop"}
    exec(code, names)
    client = names["app"].test_client()
    assert client.post("/sign-up", data={"email": "ada@example.com"}).status_code == 200
    with names["app"].app_context():
        assert names["jobs"].tick().succeeded == 1
        with travel(timedelta(days=7)):
            assert drain(names["jobs"]).succeeded == 1
        assert fire("daily_report").status == "succeeded"
    output = capsys.readouterr().out
    assert output == "Welcome, ada@example.com\nAre you happy, ada@example.com\n1 customers\n"
    dispose(names)


def in_pieces() -> list[Any]:
    """Return each block of the pages whose blocks are independent, with a name for its test."""
    return [
        pytest.param(code, id=f"{name}-{number}")
        for name in IN_PIECES
        for number, code in enumerate(codes(named(name)))
    ]


@pytest.mark.parametrize("code", in_pieces())
def test_block_of_the_page_runs_by_itself(code: Any) -> None:
    names = prelude()
    exec(code, names)
    if "authorize" in names:
        app = names["app"]
        app.config["METRICS_TOKEN"] = "a token for the scraper"
        if "cronjobs" not in app.extensions:
            LoginManager(app).request_loader(lambda request: None)
            CronJobs(app, authorize=names["authorize"])
        with app.app_context():
            names["db"].create_all()
        client = app.test_client()
        refused = (302, 401, 403)  # Flask-Login redirects to the login page.
        assert client.get("/jobs/").status_code in refused
        assert client.get("/jobs/health").status_code == 503
        app.config["METRICS_TOKEN"] = ""  # This is as if its variable were not set.
        empty = {"Authorization": "Bearer "}
        assert client.get("/jobs/metrics", headers=empty).status_code in refused
        assert client.get("/jobs/metrics").status_code in refused
    dispose(names)


def commands() -> list[Any]:
    """Return each ``flask jobs …`` of a page: the page's name, and the words after ``jobs``."""
    cases = []
    for page in PAGES:
        for block in blocks(page):
            if block.language not in ("sh", "text", "ini", "bat"):
                continue
            for match in re.finditer(
                r"flask(?:\.exe)?(?: --app \S+)? jobs ([^#\n>|)]*)", block.text
            ):
                cases.append(pytest.param(match[1], id=f"{page.name}: {match[1].strip()}"))
        for match in re.finditer(r"`flask jobs ([a-z][^`]*)`", page.read_text()):
            cases.append(pytest.param(match[1], id=f"{page.name}: {match[1]}"))
    return cases


@pytest.mark.parametrize("shown", commands())
def test_command_of_a_page_exists(shown: str) -> None:
    words = shlex.split(shown)
    command: click.Command | None = jobs_group
    context = click.Context(jobs_group, info_name="jobs")
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        word = words.pop(0)
        command = command.get_command(context, word)
        assert command is not None, f"there is no command {word}"
        context = click.Context(command, parent=context, info_name=word)
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    for word in words:
        if word.startswith("-"):
            assert word.split("=")[0] in options | {"--help"}


def test_configuration_lists_every_setting_with_its_default() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| `(CRONJOBS_\w+)` \| (.*?) \|", page, re.MULTILINE)
    defaults = {
        f"CRONJOBS_{field.name.upper()}": f"`{getattr(Settings(), field.name)!r}`"
        for field in fields(Settings)
    }
    # The names that hide values do not fit into a cell: a block shows them.
    hidden: dict[str, Any] = {"app": Flask("shop")}
    for block in blocks(named("configuration.md"), "python"):
        if "CRONJOBS_REDACT" in block.text:
            exec(block.code, hidden)
    assert hidden["app"].config["CRONJOBS_REDACT"] == Settings().redact
    assert rows == list({**defaults, "CRONJOBS_REDACT": "[Hidden values](#hidden-values)"}.items())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_that_the_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"\bCRONJOBS_[A-Z_]+[A-Z]\b", page.read_text()))
    known = {f"CRONJOBS_{field.name.upper()}" for field in fields(Settings)}
    assert {name for name in named if "TEST" not in name} <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "page",
    [
        "CONTRIBUTING.md",
        "docs/contributing/how-it-works.md",
        "docs/contributing/how-to-change-it.md",
        "docs/contributing/modules.md",
    ],
)
def test_files_that_the_page_names_exist(page: str) -> None:
    paths = re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|md|sql))`", (ROOT / page).read_text())
    assert len(paths) > 10
    roots = (ROOT, ROOT / "flask_cronjobs", ROOT / "tests")
    assert [path for path in paths if not any((root / path).is_file() for root in roots)] == []


def is_taken_out(path: str) -> bool:
    """Return whether a test belongs to a feature that was removed together with its tests."""
    feature, _, name = path.removeprefix("features/").partition("/")
    folders = ROOT / "tests/features", ROOT / "flask_cronjobs/features"
    there = any((folder / feature).exists() for folder in folders)
    return path.startswith("features/") and not there and not any(folders[0].glob(f"*/{name}"))


def test_each_promise_and_each_fault_names_tests_that_exist() -> None:
    promises = re.findall(r"^- \*\*(.+?)\.\*\*", named("guarantees.md").read_text(), re.MULTILINE)
    lines = re.findall(r"^- .+", named("faults.md").read_text(), re.MULTILINE)
    section = named("faults.md").read_text().partition("## Promises")[2].partition("\n## ")[0]
    stated = re.findall(r"^- (.+?) `[^`]+\.py[^`]*`", section, re.MULTILINE)
    assert [line for line in promises if not line.startswith("Not ")] == stated
    assert len(lines) > 100
    for line in lines:
        tests = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", line)
        assert tests, line
        for path, function in tests:
            source = ROOT / "tests" / path
            if is_taken_out(path):
                continue
            assert source.is_file(), path
            assert f"def {function}" in source.read_text(), f"{path}: {function}"
