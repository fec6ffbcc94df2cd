"""The statements that are sent most often, as each database gets them, in a readable layout.

``python -m tests.repository.sql`` writes them to ``docs/sql``, one file for each statement and
database, and those of a feature to a folder ``sql`` beside its tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from flask_cronjobs.core import (
    claim_statement,
    definitions,
    gate,
    insert,
    insert_many,
    leases,
    look,
    outcome,
    slots,
    ticks,
)
from flask_cronjobs.db.dialect import POSTGRESQL, SQLITE, Dialect
from tests.features import parts

FOLDER = Path(__file__).parents[2] / "docs" / "sql"
WIDTH = 100

#: A function that makes a statement, or returns None if the database needs none.
Maker: TypeAlias = Callable[[Dialect], Any]


STATEMENTS: dict[str, Maker] = {
    "claim": claim_statement.claim_statement,
    "record": lambda d: outcome.record_statement(d, plain=False),
    "record-successes": lambda d: outcome.record_statement(d, plain=True),
    "record-failures": outcome.failures_statement,
    "renew": leases._renew,
    "watch": leases._watch,
    "reclaim": leases.expired,
    "end-spent": leases._end_spent,
    "look": look.look_statement,
    "begin-tick": ticks.insert_tick,
    "enqueue": lambda d: insert._insert_one(d, unique=False, wakes=not d.one_writer),
    "enqueue-with-key": lambda d: insert._insert_one(d, unique=True, wakes=not d.one_writer),
    "enqueue-many": lambda d: insert_many._insert_many(d, ("payload",)),
    "read-definitions": definitions.read_definitions,
    "move-watermarks": slots._move_watermarks,
    "insert-slots": slots.insert_of_slots,
    "open": gate.open_statement,
    "parked-keys": gate.parked_keys,
}
#: The folders, each with its statements.
FOLDERS: dict[Path, dict[str, Maker]] = {
    FOLDER: STATEMENTS,
    **{Path(str(part.__file__)).with_name("sql"): part.STATEMENTS for part in parts("statements")},
}
#: A part of a statement: a word, or the parts between parentheses.
Part: TypeAlias = "Word | list[Part]"


class Word(NamedTuple):
    """A word, a text, a comma or a parenthesis, and whether white space comes before it."""

    text: str
    apart: bool = True


def rendered() -> dict[Path, str]:
    """Return the text of each file, by its path."""
    return {
        folder / f"{name}.{d.name}.sql": laid_out(statement)
        for d in (POSTGRESQL, SQLITE)
        for folder, statements in FOLDERS.items()
        for name, make in statements.items()
        if (statement := sql_of(make(d)))
    }


def sql_of(made: Any) -> str:
    """Return the SQL of a statement, without comments; empty if there is none."""
    text = "" if made is None else str(getattr(made, "text", made))
    return re.sub(r"--.*", "", text)


def folded(statement: str) -> str:
    """Return a statement with each white space replaced by one space."""
    return " ".join(statement.split())


def number_of_ctes(statement: str) -> int:
    """Return how many CTEs a statement has."""
    return len(re.findall(r"\b\w+(?:\([\w, ]+\))? AS (?:MATERIALIZED )?\(", folded(statement)))


def laid_out(statement: str) -> str:
    """Return a statement in lines that follow its clauses and parentheses."""
    (parts,) = [_tree(iter(words(statement)))]
    return "\n".join(_lines(parts, 0)) + "\n"


def words(statement: str) -> list[Word]:
    """Return the words of a statement."""
    matches = re.finditer(r"(\s*)('(?:[^']|'')*'|[(),]|[^\s(),']+)", statement)
    return [Word(match[2], bool(match[1])) for match in matches]


def _tree(left: Iterator[Word]) -> list[Part]:
    parts: list[Part] = []
    for word in left:
        if word.text == ")":
            break
        if word.text == "(":
            parts.append(word)
            parts.append(_tree(left))
        else:
            parts.append(word)
    return parts


def _flat(parts: Sequence[Part]) -> str:
    line = ""
    for part in parts:
        if isinstance(part, list):
            line += f"{_flat(part)})"
        else:
            line += " " * (part.apart and bool(line) and part.text != ",") + part.text
    return line


def _lines(parts: list[Part], indent: int) -> Iterator[str]:
    """Yield *parts* in one line, or broken at the first of these that they have, from the top."""
    line = " " * indent + _flat(parts)
    if len(line) <= WIDTH:
        yield line
        return
    for split in (_clauses, _members, _conditions, _cases):
        pieces = split(parts)
        if len(pieces) > 1:
            for piece in pieces:
                inside = 4 * (piece is not pieces[0] and _is_inside(parts, piece, split is _cases))
                split_piece = _clause if split is _clauses else _lines
                yield from split_piece(piece, indent + inside)
            return
    yield from _opened(parts, indent)


def _is_inside(parts: list[Part], piece: list[Part], of_case: bool) -> bool:
    """Return whether a further *piece* of *parts* is indented: of a CASE, or of its WHEN."""
    return _text(piece[0]) != "END" if of_case else _text(parts[0]) in ("WHEN", "ELSE")


def _clause(parts: list[Part], indent: int) -> Iterator[str]:
    """Yield a clause in one line, or its name and below it the rest."""
    line = " " * indent + _flat(parts)
    if len(line) <= WIDTH:
        yield line
        return
    end = _name_ends(parts)
    yield " " * indent + _flat(parts[:end])
    yield from _lines(parts[end:], indent + 4)


def _opened(parts: list[Part], indent: int) -> Iterator[str]:
    """Yield parts whose parentheses are opened where they are too long."""
    line = " " * indent
    for place, part in enumerate(parts):
        if isinstance(part, list):
            if len(line + _flat(part)) < WIDTH:
                line += f"{_flat(part)})"
                continue
            yield line
            yield from _lines(part, indent + 4)
            line = " " * indent + ")"
        else:
            line += " " * (part.apart and place > 0 and part.text != ",") + part.text
    yield line


_BEGINS = {
    *("WITH", "SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "INSERT"),
    *("VALUES", "UPDATE", "SET", "DELETE", "RETURNING", "ON CONFLICT", "FOR", "CROSS", "LEFT"),
    "JOIN",
}
#: Words that continue a clause, though the second one could begin another.
_GOES_ON = {
    *("DELETE FROM", "DISTINCT FROM", "DO UPDATE", "KEY UPDATE", "CROSS JOIN", "LEFT JOIN"),
}
#: Words that belong to the name of a clause.
_OF_NAME = {
    *("WITH RECURSIVE", "GROUP BY", "ORDER BY", "UNION ALL", "INSERT INTO", "DELETE FROM"),
    *("ON CONFLICT", "CROSS JOIN", "LEFT JOIN", "SELECT DISTINCT"),
}


def _text(part: Part) -> str:
    return "()" if isinstance(part, list) else part.text


def _name_ends(parts: list[Part]) -> int:
    return 2 if " ".join(map(_text, parts[:2])) in _OF_NAME else 1


def _clauses(parts: list[Part]) -> list[list[Part]]:
    pieces: list[list[Part]] = [[]]
    texts = ["", *map(_text, parts), ""]
    for before, here, after, part in zip(texts, texts[1:], texts[2:], parts, strict=False):
        begins = here in _BEGINS or f"{here} {after}" in _BEGINS
        if begins and pieces[-1] and f"{before} {here}" not in _GOES_ON:
            pieces.append([])
        pieces[-1].append(part)
    return pieces


def _members(parts: list[Part]) -> list[list[Part]]:
    pieces: list[list[Part]] = [[]]
    for part in parts:
        if pieces[-1] and _text(pieces[-1][-1]) == ",":
            pieces.append([])
        pieces[-1].append(part)
    return pieces


def _conditions(parts: list[Part]) -> list[list[Part]]:
    return _at(parts, ("AND", "OR"), depth=0)


def _cases(parts: list[Part]) -> list[list[Part]]:
    return _at(parts, ("WHEN", "ELSE", "END"), depth=1)


def _at(parts: list[Part], names: tuple[str, ...], depth: int) -> list[list[Part]]:
    """Return *parts* divided before each of *names* that is inside *depth* CASEs."""
    pieces: list[list[Part]] = [[]]
    cases = 0
    for part in parts:
        word = _text(part)
        if word in names and cases == depth and pieces[-1]:
            pieces.append([])
        pieces[-1].append(part)
        cases += (word == "CASE") - (word == "END")
    return pieces


def main() -> None:
    """Write the statements, and delete the files of statements that no longer exist."""
    files = rendered()
    for folder in FOLDERS:
        folder.mkdir(exist_ok=True)
        for old in set(folder.glob("*.sql")) - files.keys():
            old.unlink()
    for path, statement in files.items():
        path.write_text(statement)


if __name__ == "__main__":
    main()
