"""Suggested commands are the intended ones, with the options of ``flask``, quoted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import click
import pytest
from click.testing import CliRunner, Result
from flask import Flask
from flask.cli import FlaskGroup

from flask_cronjobs import CronJobs
from flask_cronjobs.cli import jobs_group

Call = Callable[..., Result]


@pytest.fixture
def flask(app: Flask, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call ``flask``, or the program *program*, as a shell would."""
    # The option --debug sets this for the whole process, and other tests must not see it.
    monkeypatch.setenv("FLASK_DEBUG", "0")

    def call(*args: str, program: str = "flask") -> Result:
        monkeypatch.setattr(sys, "argv", [program, *args])
        group = FlaskGroup(create_app=lambda: app)
        return CliRunner().invoke(group, args, prog_name=program)

    return call


def suggested(result: Result) -> str:
    assert result.exit_code == 2
    return result.output.partition("Did you mean: ")[2].strip()


def test_near_miss_is_answered_by_the_whole_command(flask: Call) -> None:
    for args, meant in (
        (["list"], "admin list"),
        (["list", "--status", "dead"], "admin list --status dead"),
        (["show", "5"], "admin show 5"),
        (["run", "a task"], "admin run 'a task'"),
        (["admin", "tick", "--workers", "2"], "tick --workers 2"),
        (["worker"], "work"),
        (["admin", "lst"], "admin list"),
        (["admin", "retrz", "5"], "admin retry 5"),
        (["tikc"], "tick"),
        (["definitionz"], "admin definitions"),
    ):
        assert suggested(flask("jobs", *args)) == f"flask jobs {meant}"
    assert flask("jobs", "qqqq").output.endswith("Error: There is no command 'qqqq'.\n")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield *path, name


@pytest.mark.parametrize("path", list(commands(jobs_group)), ids=" ".join)
def test_every_command_has_h_and_examples(flask: Call, path: tuple[str, ...]) -> None:
    result = flask("jobs", *path, "-h")
    assert result.exit_code == 0
    assert result.output == flask("jobs", *path, "--help").output
    examples = [line.strip() for line in result.output.partition("Examples:\n")[2].splitlines()]
    assert examples
    called = " ".join(("jobs", *path))
    assert any(called in line for line in examples)
    assert max(map(len, result.output.splitlines())) <= 80
