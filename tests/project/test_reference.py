"""The reference lacks no public name, no command and no option."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from types import ModuleType
from typing import Any

import click
import pytest

import flask_cronjobs
from flask_cronjobs import CronJobs
from flask_cronjobs.cli import jobs_group
from flask_cronjobs.jobs.batches.views import BatchView
from flask_cronjobs.jobs.checks import Finding
from flask_cronjobs.jobs.definitions.views import DefinitionList, DefinitionView
from flask_cronjobs.jobs.health import Verdict
from flask_cronjobs.jobs.overview import DeadGroup, Orphan, Overview
from flask_cronjobs.jobs.runs.current import CurrentRun
from flask_cronjobs.jobs.runs.detail import Attempt, RunView
from flask_cronjobs.jobs.runs.rows import RunRow
from flask_cronjobs.jobs.ticks import Bucket
from flask_cronjobs.models import records, tables

from .pages import ROOT

API = (ROOT / "docs" / "api.md").read_text()


def module_of_the_docs(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", flask_cronjobs.__all__)
def test_public_name_is_in_the_api(name: str) -> None:
    assert re.search(
        rf"(\.\. auto\w+:: flask_cronjobs\.|:: flask_cronjobs\.|members: .*\b){name}\b", API
    )


@pytest.mark.parametrize("name", [*records.__all__, *tables.__all__])
def test_model_is_in_the_api(name: str) -> None:
    assert f".. autoclass:: flask_cronjobs.models.{name}()\n   :members:" in API


def test_attributes_of_the_current_run_are_in_the_api() -> None:
    (listed,) = re.findall(r"CurrentRun\(\)\n   :members: (.*)", API)
    # Not for handlers.
    ours = {"warn", "write_progress", "has_progress", "reported", "output", "books_here"}
    ours |= {"known_steps"}
    public = {name for name in vars(CurrentRun) if not name.startswith("_")}
    assert set(listed.split(", ")) == public - ours


def test_what_the_api_shows_whole_has_a_text_for_each_name() -> None:
    names = [name for name in dir(CronJobs) if not name.startswith("_")]
    assert len(names) > 10
    assert [name for name in names if not getattr(CronJobs, name).__doc__] == []


def commands(command: click.Command, path: str) -> dict[str, click.Command]:
    """Each command below *command*, by its path. Apart from the reference's own walk."""
    found = {path: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below: Any = command.get_command(context, name)
            found |= commands(below, f"{path} {name}")
    return found


COMMANDS = commands(jobs_group, "flask jobs")


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """The text of the reference for each command."""
    parts = re.split(r"^## (.*)\n", module_of_the_docs("commands").reference(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_command_is_in_the_reference(sections: dict[str, str]) -> None:
    assert len(COMMANDS) > 15
    assert list(sections) == list(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_each_option_and_the_help_are_in_the_reference(path: str, sections: dict[str, str]) -> None:
    command, section = COMMANDS[path], sections[path]
    options = [each for each in command.params if isinstance(each, click.Option)]
    for option in options:
        for name in option.opts:
            assert re.search(rf"^\| `.*{name}\b.*` \| \S", section, re.M), name
    assert (command.help or "").split("\n")[0] in section


def test_reference_goes_into_its_page() -> None:
    assert (ROOT / "docs" / "commands.md").read_text().count("<!-- commands -->") == 1
    assert '"<!-- commands -->", reference()' in (ROOT / "docs" / "conf.py").read_text()


SHAPES: tuple[type, ...] = (
    Overview, Verdict, Finding, DefinitionView,
    DefinitionList, RunView, RunRow, Attempt, DeadGroup, Orphan,
    Bucket, BatchView,
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_each_key_of_the_json_is_in_the_documentation(shape: type) -> None:
    section = (ROOT / "docs" / "admin.md").read_text().partition("## JSON")[2].partition("\n## ")[0]
    keys = getattr(shape, "_fields", None) or [each.name for each in dataclasses.fields(shape)]
    assert [key for key in keys if f"`{key}`" not in section] == []
