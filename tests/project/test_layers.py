"""Imports go downward through the floors, and some things are known to one folder only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import flask_cronjobs

PACKAGE = Path(flask_cronjobs.__file__).parent

# From the ground up; a room imports only from its own floor and from those above it in this list.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "log", "text", "types"),
    ("models", "schedule", "signals"),
    ("config", "db"),
    ("registry",),
    ("jobs",),
    ("batch", "engine", "once", "steps", "task"),
    ("executors",),
    ("cli", "web"),
    ("__init__", "extension", "gunicorn", "methods"),
    ("testing",),
)
FLOOR = {name: height for height, floor in enumerate(FLOORS) for name in floor}

MODULES = sorted(PACKAGE.rglob("*.py"))


@dataclass(frozen=True)
class Import:
    """One import of a module: where it stands, and the full name of what it imports."""

    line: int
    name: str
    delayed: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("flask_cronjobs", *parts)).removesuffix(".__init__")


def room(path: Path) -> str:
    """The module or subpackage of the package that *path* belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import but those for type checkers alone."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text())
    checked = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    top = {id(node) for node in tree.body}
    package = ".".join(("flask_cronjobs", *path.relative_to(PACKAGE).parts[:-1]))
    for node in ast.walk(tree):
        if id(node) in checked:
            continue
        delayed = id(node) not in top
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, delayed) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            for alias in node.names:
                yield Import(node.lineno, f"{base}.{alias.name}", delayed)


def own_room(name: str) -> str | None:
    """The room of an import from this package, or None."""
    parts = name.split(".")
    if parts[0] != "flask_cronjobs" or len(parts) < 2:
        return None
    return parts[1] if parts[1] in FLOOR else "__init__"


def places(which: str) -> set[str]:
    """The modules that import *which* (a top-level package)."""
    return {
        module_name(path)
        for path in MODULES
        for each in imports(path)
        if each.name == which or each.name.startswith(which + ".")
    }


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_downward(path: Path) -> None:
    here = FLOOR[room(path)]
    for each in imports(path):
        target = own_room(each.name)
        if target is None or target == room(path):
            continue
        assert FLOOR[target] <= here, f"{path.name}:{each.line} imports {each.name}"


def test_there_are_no_circles() -> None:
    """Whole modules: A imports B imports A, at whatever distance, delayed imports left out."""
    names = {module_name(path) for path in MODULES}
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        found = set()
        for each in imports(path):
            if each.delayed or not each.name.startswith("flask_cronjobs"):
                continue
            target = each.name if each.name in names else each.name.rpartition(".")[0]
            if target in names and target != module_name(path):
                found.add(target)
        graph[module_name(path)] = found
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert graph == {}


def test_every_module_has_a_floor() -> None:
    assert {room(path) for path in MODULES} == FLOOR.keys()


def test_croniter_is_known_to_the_schedule_alone() -> None:
    assert places("croniter") <= {
        "flask_cronjobs.schedule.walk",
        "flask_cronjobs.schedule.cron_text",
    }
    assert places("croniter")


def test_click_is_known_to_the_commands_alone() -> None:
    assert {name for name in places("click") if ".cli" not in name} == set()
    assert {name for name in places("flask.cli") if ".cli" not in name} == set()


def test_current_app_is_asked_for_by_the_state_and_the_pages_alone() -> None:
    found = places("flask.current_app")
    assert {name for name in found if ".web" not in name} == {"flask_cronjobs.core.app_state"}


def writes(path: Path) -> Iterator[str]:
    """Statements that write: SQL texts, and SQLAlchemy's own constructs by their names."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = " ".join(node.value.split())
            if id(node) not in docstrings and any(
                f"{verb} job_" in words for verb in ("INSERT INTO", "UPDATE", "DELETE FROM")
            ):
                yield f"{path.name}:{node.lineno} {words[:50]}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
            for alias in node.names:
                if alias.name in ("insert", "update", "delete"):
                    yield f"{path.name}:{node.lineno} imports {alias.name}"


def test_writes_to_the_tables_are_in_jobs_and_db_alone() -> None:
    outside = [
        write for path in MODULES if room(path) not in ("jobs", "db") for write in writes(path)
    ]
    assert outside == []
    assert any(True for path in MODULES if room(path) == "jobs" for _ in writes(path))


def test_which_database_it_is_is_known_to_db_alone() -> None:
    """Others ask what it can: see `Dialect`."""
    asks = re.compile(r'name [!=]= "(sqlite|postgresql)"')
    others = [path for path in MODULES if room(path) not in ("db", "models")]
    assert [path for path in others if asks.search(path.read_text())] == []


def test_internals_names_each_module() -> None:
    text = (PACKAGE.parent / "docs/contributing/internals.md").read_text()
    tree = text.split("```text")[1].split("```")[0]
    named = set[str]()
    for line in tree.splitlines():
        if line[:12].strip():  # Else it goes on with a description.
            names = re.split(r"\s{2,}", line.strip(), maxsplit=1)[0]
            named |= {name.removesuffix(".py").strip("/") for name in names.split()}
    modules = {path.stem for path in PACKAGE.rglob("*.py")}
    folders = {path.parent.name for path in PACKAGE.rglob("*.py")}
    assert named == modules | folders
