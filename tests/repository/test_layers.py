"""Imports go downward through the floors, and some packages are imported in one place only."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

import flask_cronjobs

PACKAGE = Path(flask_cronjobs.__file__).parent

# From the ground up: a room imports only from its own floor and from the floors listed before it.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "log", "text", "types"),
    ("models", "schedule", "signals"),
    ("config", "db"),
    ("core", "features", "insights"),
    ("executors", "task"),
    ("cli", "web"),
    ("__init__", "extension", "gunicorn", "methods"),
    ("testing",),
)
FLOOR = {name: height for height, floor in enumerate(FLOORS) for name in floor}

MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("flask_cronjobs", *parts)).removesuffix(".__init__")


NAMES = frozenset(map(module_name, MODULES))


def short(name: str) -> str:
    """Return the name of a module without that of the package."""
    return name.partition(".")[2] or "__init__"


@dataclass(frozen=True)
class Import:
    """One import of a module: its line, and the full name of what it imports."""

    line: int
    name: str
    delayed: bool


def room(path: Path) -> str:
    """Return the top module or subpackage that *path* belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Return all imports of a module, except those for type checkers only."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text())
    checked = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
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
    """Return the room of an import from this package; None for others."""
    parts = name.split(".")
    if parts[0] != "flask_cronjobs" or len(parts) < 2:
        return None
    return parts[1] if parts[1] in FLOOR else "__init__"


def places(which: str) -> set[str]:
    """Return the modules that import *which*, a top-level package or a name in it."""
    return {
        module_name(path)
        for path in MODULES
        for i in imports(path)
        if i.name == which or i.name.startswith(which + ".")
    }


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_downward(path: Path) -> None:
    here = FLOOR[room(path)]
    for imported in imports(path):
        target = own_room(imported.name)
        if target is None or target == room(path):
            continue
        assert FLOOR[target] <= here, f"{path.name}:{imported.line} imports {imported.name}"


@cache
def arrows() -> dict[tuple[str, str], bool]:
    """Return each import of a module of ours by another, and whether it is delayed everywhere."""
    pairs: dict[tuple[str, str], bool] = {}
    for path in MODULES:
        here = module_name(path)
        for imported in imports(path):
            target = imported.name if imported.name in NAMES else imported.name.rpartition(".")[0]
            if target in NAMES and target != here:
                pair = short(here), short(target)
                pairs[pair] = imported.delayed and pairs.get(pair, True)
    return pairs


def circle(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return a graph without the modules that are on no circle and lead to none."""
    graph: dict[str, set[str]] = {}
    for here, target in pairs:
        graph.setdefault(here, set()).add(target)
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in leaves:
            del graph[name]
    return graph


#: Delayed imports that close a circle. None may be added; if you remove a circle, delete its line.
CLOSING_CIRCLES = frozenset(
    {
        ("cli.group", "cli"),
        ("cli.group", "cli.overview"),
    }
)


def test_there_are_no_circles() -> None:
    """The circles are of whole modules, of any length, and include delayed imports."""
    assert circle(arrows().keys() - CLOSING_CIRCLES) == {}


@pytest.mark.parametrize("pair", sorted(CLOSING_CIRCLES), ids=" to ".join)
def test_import_that_closes_a_circle_is_delayed_and_still_there(pair: tuple[str, str]) -> None:
    assert arrows().get(pair) is True, "Delete its line."
    rest = CLOSING_CIRCLES - {pair}
    assert circle(arrows().keys() - rest), "Delete its line: it closes no circle any more."


#: The rooms, with their top folders and modules.
ROOMS: dict[str, tuple[str, ...]] = {
    "words": ("config", "errors", "log", "signals", "text", "types"),
    "db": ("db",),
    "schedule": ("schedule",),
    "models": ("models",),
    "core": ("core",),
    "features": ("features", "executors"),
    "insights": ("insights",),
    "faces": ("__init__", "cli", "extension", "gunicorn", "methods", "task", "testing", "web"),
}
_ROOM_OF = {name: room for room, names in ROOMS.items() for name in names}


def room_of(module: str) -> str:
    """Return the room of a module, such as ``core``."""
    return _ROOM_OF[module.partition(".")[0]]


#: The rooms from which a room must not import, even if the import is delayed.
UNKNOWN = {
    **dict.fromkeys(("db", "schedule"), ("core", "features", "insights", "faces")),
    "core": ("features", "insights", "faces"),
    **dict.fromkeys(("features", "insights"), ("faces",)),
}


def test_nothing_is_imported_through_walls() -> None:
    """Delayed imports count, too."""
    calls = [
        (here, target)
        for here, target in arrows()
        if room_of(target) in UNKNOWN.get(room_of(here), ())
    ]
    assert sorted(calls) == []


def test_every_module_has_a_room() -> None:
    assert _ROOM_OF.keys() == FLOOR.keys()


def test_few_modules_import_by_a_computed_name() -> None:
    """The tests here cannot see what such modules import."""
    assert {short(name) for name in places("importlib.import_module")} == {
        *("__init__", "cli.group", "core.features", "core.worker.process_signals"),
        *("executors.celery", "web"),
    }


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
    modules = places("flask.current_app")
    assert {name for name in modules if ".web" not in name} == {"flask_cronjobs.core.app_state"}


def writes(path: Path) -> Iterator[str]:
    """Yield the statements that write: SQL texts, and imports of SQLAlchemy's constructs."""
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


def test_writes_to_the_tables_are_in_no_face() -> None:
    inside = ("core", "db", "features", "insights")
    outside = [write for path in MODULES if room(path) not in inside for write in writes(path)]
    assert outside == []
    assert any(True for path in MODULES if room(path) == "core" for _ in writes(path))


def test_which_database_it_is_is_known_to_db_alone() -> None:
    """Other rooms ask what the database can do: see `Dialect`."""
    asks = re.compile(r'name [!=]= "(sqlite|postgresql)"')
    outside = [path for path in MODULES if room(path) not in ("db", "models")]
    assert [path for path in outside if asks.search(path.read_text())] == []


def test_tree_of_the_page_names_each_module() -> None:
    text = (PACKAGE.parent / "docs/contributing/modules.md").read_text()
    tree = text.split("```text")[1].split("```")[0]
    named = set[str]()
    for line in tree.splitlines():
        if line[:12].strip():  # Otherwise the line continues a description.
            names = re.split(r"\s{2,}", line.strip(), maxsplit=1)[0]
            named |= {name.removesuffix(".py").strip("/") for name in names.split()}
    # A feature can be added or removed without changing this page.
    others = [path for path in MODULES if room(path) != "features"]
    assert named == {
        "features",
        *(name for path in others for name in (path.stem, path.parent.name)),
    }


def code_lines(path: Path) -> int:
    """Return how many lines of a module are code: not empty, no docstring, no comment."""
    text = path.read_text()
    code = set[int]()
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type not in blank | {tokenize.ENDMARKER}:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


def test_kernel_is_read_in_an_afternoon() -> None:
    page = (PACKAGE.parent / "docs/contributing/how-it-works.md").read_text()
    rows = re.findall(r"^\| (`core/.+?) \|.*\| (\d+) \|$", page, re.MULTILINE)
    kernel = [re.findall(r"`(.+?)`", row) for row, _ in rows]
    sizes = [sum(code_lines(PACKAGE / name) for name in names) for names in kernel]
    assert sum(map(len, kernel)) <= 20
    assert 2000 < sum(sizes) <= 3200
    # The sizes on the page are right within what matters to a reader.
    for size, (row, stated) in zip(sizes, rows, strict=True):
        assert abs(size - int(stated)) <= 25 + size / 5, f"{row}: {size}"
