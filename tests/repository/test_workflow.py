"""The hosted workflow runs what a developer runs, on the oldest and the newest Python."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from .pages import ROOT

WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
VERSIONS: list[dict[str, str]] = WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]["include"]


def commands(job: str) -> list[str]:
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def test_one_job_runs_all_that_must_pass() -> None:
    (command,) = commands("all")
    assert os.access(ROOT / command, os.X_OK)


def test_the_other_jobs_run_targets_of_make() -> None:
    (command,) = commands("versions")
    assert command == "make ${{ matrix.target }} PYTHON=python${{ matrix.python }}"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {version["target"] for version in VERSIONS} <= targets


@pytest.mark.parametrize(("target", "position"), [("oldest", 0), ("newest", -1)])
def test_versions_are_the_oldest_and_the_newest_that_the_package_declares(
    target: str, position: int
) -> None:
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', _pyproject())
    (python,) = (version["python"] for version in VERSIONS if version["target"] == target)
    assert python == declared[position]


def _pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text()
