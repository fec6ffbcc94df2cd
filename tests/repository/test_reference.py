"""The reference lacks no public name, no command and no option."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import click
import pytest

import flask_cronjobs
from flask_cronjobs.cli import jobs_group
from flask_cronjobs.core.current import CurrentRun
from flask_cronjobs.insights.batch_views import BatchView
from flask_cronjobs.insights.health import Verdict
from flask_cronjobs.insights.health_checks import Finding
from flask_cronjobs.insights.overview import DeadGroup, Overview
from flask_cronjobs.insights.run_detail import Attempt, RunView
from flask_cronjobs.insights.run_rows import RunRow
from flask_cronjobs.insights.schedule_views import DefinitionList, DefinitionView
from flask_cronjobs.insights.tick_views import Bucket
from flask_cronjobs.models import records, tables

from .pages import DOCS, PAGES, ROOT

API = (ROOT / "docs" / "api.md").read_text()


def test_each_picture_is_on_a_page() -> None:
    pages = "\n".join(page.read_text() for page in PAGES)
    names = set(re.findall(r"\]\((?:docs/)?screenshots/(.+?)\)", pages))
    assert names == {picture.name for picture in (DOCS / "screenshots").iterdir()}


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
    # These are not for handlers.
    ours = {"warn", "write_progress", "has_progress", "reported", "output", "books_here"}
    ours |= {"feature_objects", "at_end", "raise_again", "cause_of"}
    ours |= {"warning", "interrupted_by", "ended_by", "gives_back", "limited"}
    public = {name for name in vars(CurrentRun) if not name.startswith("_")}
    assert set(listed.split(", ")) == public - ours


def commands(command: click.Command, path: str) -> dict[str, click.Command]:
    """Return each command below *command*, by its path."""
    by_path = {path: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below: Any = command.get_command(context, name)
            by_path |= commands(below, f"{path} {name}")
    return by_path


COMMANDS = commands(jobs_group, "flask jobs")


PAGE = (ROOT / "docs" / "commands.md").read_text()


@pytest.mark.parametrize("path", COMMANDS)
def test_each_command_and_option_is_in_the_reference(path: str) -> None:
    assert re.search(rf"`{path.rpartition(' ')[2]}\b", PAGE)
    options = [param for param in COMMANDS[path].params if isinstance(param, click.Option)]
    named = [name for option in options for name in option.opts]
    assert [name for name in named if not re.search(rf"`(?:[^`]* )?{name}\b", PAGE)] == []


SHAPES: tuple[type, ...] = (
    Overview, Verdict, Finding, DefinitionView,
    DefinitionList, RunView, RunRow, Attempt, DeadGroup,
    Bucket, BatchView,
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_each_key_of_the_json_is_in_the_documentation(shape: type) -> None:
    section = PAGE.partition("## JSON")[2]
    keys = getattr(shape, "_fields", None) or [f.name for f in dataclasses.fields(shape)]
    assert [key for key in keys if f"`{key}`" not in section] == []
