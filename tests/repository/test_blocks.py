"""Each block of the documentation is checked, in whatever language it is.

Blocks of Python run in `test_readme`, `test_quickstart` and `test_alerting`.
"""

from __future__ import annotations

import configparser
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]
from sqlalchemy import Engine, create_engine, text

from flask_cronjobs.cli import jobs_group
from flask_cronjobs.db.create import create_tables

from .pages import PAGES, Block, all_blocks, blocks

#: Languages with a check, and those without: Sphinx's own, and what a terminal shows.
CHECKED = {"python", "py", "sh", "sql", "yaml", "toml", "ini"}
UNCHECKED = {"text", "dockerfile", "bat", "{toctree}", "{include}", "{eval-rst}", "{glossary}"}


def each(*languages: str) -> list[Any]:
    blocks = all_blocks(*languages)
    assert blocks
    return [pytest.param(block, id=block.name) for block in blocks]


def test_each_block_names_a_language_that_is_checked() -> None:
    strange = {
        f"{block.name}: {block.language or 'none'}"
        for page in PAGES
        for block in blocks(page)
        if block.language not in CHECKED | UNCHECKED
    }
    assert strange == set()


@pytest.mark.parametrize("block", each("py"))
def test_python_that_needs_what_is_not_installed_compiles(block: Block) -> None:
    assert block.code.co_names


@pytest.mark.parametrize("block", each("sh"))
def test_shell_can_read_the_block(block: Block) -> None:
    result = subprocess.run(["sh", "-n"], input=block.text, text=True, capture_output=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    engine = create_engine(postgresql_url)
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("block", each("sql"))
def test_postgresql_runs_the_block(block: Block, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(block.text))


@pytest.mark.parametrize("block", each("ini"))
def test_unit_starts_a_command_that_exists(block: Block) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(block.text)
    if "uwsgi" in unit:
        settings, _, command = unit["uwsgi"]["attach-daemon2"].partition("exec flask --app shop ")
        assert settings == "stopsignal=1,reloadsignal=1,cmd="
        assert_command_exists(command.split()[:2])
        return
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    assert_command_exists(shlex.split(unit["Service"]["ExecStart"])[1:])
    assert unit["Service"]["User"]


@pytest.mark.parametrize("block", each("toml"))
def test_processes_in_the_toml_are_commands_that_exist(block: Block) -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.10 has none.
    processes = tomllib.loads(block.text)["processes"]
    assert set(processes) == {"web", "jobs"}
    assert_command_exists(processes["jobs"].split()[1:])


@pytest.mark.parametrize("block", each("yaml"))
def test_commands_in_the_yaml_exist(block: Block) -> None:
    documents = list(yaml.safe_load_all(block.text))
    assert all(isinstance(document, dict) for document in documents)
    for command in commands_in(documents):
        if command[1] == "jobs":
            assert_command_exists(command[1:])


def commands_in(node: Any) -> Iterator[list[str]]:
    """Yield each ``command`` or ``startCommand`` that begins with ``flask``, at any depth."""
    if isinstance(node, dict):
        command = node.get("command") or shlex.split(node.get("startCommand", ""))
        if isinstance(command, list) and command[:1] == ["flask"]:
            yield command
    if isinstance(node, (dict, list)):
        for child in node.values() if isinstance(node, dict) else node:
            yield from commands_in(child)


def assert_command_exists(words: list[str]) -> None:
    assert words[0] == "jobs"
    command = jobs_group.get_command(click.Context(jobs_group), words[1])
    assert command is not None
    assert len(words) == 2
