"""The files in ``docs/sql`` are what is sent, and the largest statements do not grow."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from flask_cronjobs.db.dialect import POSTGRESQL, SQLITE, Dialect
from tests.repository.sql import (
    FOLDERS,
    STATEMENTS,
    folded,
    laid_out,
    number_of_ctes,
    rendered,
    sql_of,
    words,
)

DIALECTS = {d.name: d for d in (POSTGRESQL, SQLITE)}
ALL = {name: make for statements in FOLDERS.values() for name, make in statements.items()}
WRITE = "If the change is meant, write them anew: python -m tests.repository.sql"


class Size(NamedTuple):
    """How much there is to read: characters, with white space folded, and CTEs."""

    characters: int
    ctes: int


#: The bounds may only be lowered.
BOUNDS = {
    ("claim", "postgresql"): Size(7_065, 11),
    ("claim", "sqlite"): Size(6_000, 10),
    ("record", "postgresql"): Size(3_332, 4),
    ("record", "sqlite"): Size(3_357, 2),
}


def test_statements_are_as_they_are_written_down() -> None:
    files = {path: path.read_text() for folder in FOLDERS for path in folder.iterdir()}
    current = rendered()
    changed = sorted(path.name for path, sql in current.items() if files.get(path) != sql)
    assert not changed, WRITE
    assert files.keys() == current.keys(), WRITE


@pytest.mark.parametrize(("name", "database"), BOUNDS)
def test_statement_is_small(name: str, database: str) -> None:
    statement = sql_of(STATEMENTS[name](DIALECTS[database]))
    bound = BOUNDS[name, database]
    assert len(folded(statement)) <= bound.characters
    assert number_of_ctes(statement) <= bound.ctes


@pytest.mark.parametrize("d", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("name", ALL)
def test_layout_changes_white_space_alone(name: str, d: Dialect) -> None:
    statement = sql_of(ALL[name](d))
    text = laid_out(statement) if statement else ""
    assert [word.text for word in words(text)] == [word.text for word in words(statement)]


def test_layout() -> None:
    members = ", ".join(f"column_with_a_long_name_{number}" for number in range(4))
    text = laid_out(f"WITH a AS (\n SELECT {members} FROM t WHERE x = 'a,  (b'   AND y ) SELECT 1")
    assert text == (
        "WITH\n"
        "    a AS (\n"
        "        SELECT\n"
        "            column_with_a_long_name_0,\n"
        "            column_with_a_long_name_1,\n"
        "            column_with_a_long_name_2,\n"
        "            column_with_a_long_name_3\n"
        "        FROM t\n"
        "        WHERE x = 'a,  (b' AND y\n"
        "    )\n"
        "SELECT 1\n"
    )
