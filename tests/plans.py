"""PostgreSQL's plans of the statements that bookkeeping sends, as it plans them for bookkeeping."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Engine, event

from flask_cronjobs.db.planner import SETTINGS

Node = dict[str, Any]


@dataclass
class Sent:
    """The statements that were sent, with their parameters, in order."""

    statements: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)


@contextmanager
def sent_by(engine: Engine) -> Generator[Sent]:
    """Collect what bookkeeping sends in this block, each statement once."""
    sent = Sent()

    def see(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        ours = type(cursor).__name__ == "SteadyCursor"
        known = any(statement == before for before, _ in sent.statements)
        if ours and not known and re.match(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", statement):
            sent.statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", see)
    yield sent
    event.remove(engine, "before_cursor_execute", see)


def explain(engine: Engine, statement: str, parameters: Mapping[str, Any], *options: str) -> Node:
    """The plan of a prepared statement; with the option ``ANALYZE`` it is run, and undone.

    :param statement: as psycopg gets it.
    """
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    numbered = re.sub(r"%\((\w+)\)s", number, statement).replace("%%", "%")
    how = ", ".join((*options, "FORMAT JSON"))
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        connection.execute(SETTINGS)
        connection.execute(f"PREPARE it AS {numbered}".encode())
        values = sql.SQL(", ").join(sql.Literal(parameters[name]) for name in names)
        given = sql.SQL("({})").format(values) if names else sql.SQL("")
        query = sql.SQL("EXPLAIN ({}) EXECUTE it{}").format(sql.SQL(how), given)
        row = connection.execute(query).fetchone()
        connection.rollback()
    assert row is not None
    plan: Node = row[0][0]["Plan"]
    return plan


def nodes(plan: Node) -> Iterator[Node]:
    """All nodes of a plan, from the top."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def paths(plan: Node) -> list[str]:
    """By which indexes a plan reads the tables, and what it looks for in them."""
    scans = [node for node in nodes(plan) if "Index Name" in node]
    found = sorted(f"{scan['Index Name']}: {scan.get('Index Cond')}" for scan in scans)
    return [re.sub(r"InitPlan \d+|\$\d+|_\d+", "…", path) for path in found]


def pages(plan: Node) -> int:
    """How many pages an analyzed plan read."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def faults(plan: Node) -> list[str]:
    """What in a plan takes time in proportion to a table or to the square of a batch."""
    found = []
    for node in nodes(plan):
        kind, table = node["Node Type"], node.get("Relation Name", "")
        if kind in ("Seq Scan", "Bitmap Heap Scan") and table.startswith("job_"):
            found.append(f"{kind} on {table}")
        if kind == "Index Scan" and node["Index Name"].startswith("pk_") and not _searches(node):
            found.append(f"walks along all of {table}")
        if kind in ("Nested Loop", "Merge Join") and not _is_lateral(node):
            found.append(kind)
        if kind in ("Sort", "Incremental Sort") and any(map(_is_backlog, _sorted(node))):
            found.append(f"{kind} of {node['Sort Key']}")
    return found


def _searches(scan: Node) -> bool:
    return "Index Cond" in scan


def _is_lateral(join: Node) -> bool:
    """Whether the inner side is a limit of rows that belong to the outer row, by an index."""
    inner = next(child for child in join["Plans"] if child["Parent Relationship"] == "Inner")
    return inner["Node Type"] == "Limit" and any(map(_searches, nodes(inner)))


def _sorted(sort: Node) -> Iterator[Node]:
    """The nodes whose rows are sorted; a limit is where the rows are few."""
    for child in sort["Plans"]:
        if child.get("Parent Relationship") in ("Outer", "Inner", "Member", "Subquery"):
            yield child
            if child["Node Type"] != "Limit":
                yield from _sorted({"Plans": child.get("Plans", ())})


def _is_backlog(node: Node) -> bool:
    by_id = str(node.get("Index Cond", "")).startswith("(id = ANY")
    return node.get("Relation Name") == "job_runs" and not by_id
