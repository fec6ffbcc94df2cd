"""The cost of statements, PostgreSQL's plans of those of bookkeeping, and full tables."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, create_engine, event, text

from flask_cronjobs.db.create import create_tables
from flask_cronjobs.db.statements import SETTINGS
from flask_cronjobs.insights.reader import IN_ORDER
from tests.postgres import Server

Node = dict[str, Any]

LONG_AGO = "'2026-01-01 00:00:00'"


def add(engine: Engine, table: str, count: int, start: int = 1, /, **columns: str) -> None:
    """Insert *count* rows; the columns are SQL that may use the row's number ``i``."""
    steps = f"SELECT {start} UNION ALL SELECT i + 1 FROM n WHERE i < {start + count - 1}"
    values = [_typed(engine, name, value) for name, value in columns.items()]
    with engine.begin() as connection:
        connection.execute(
            text(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)}"
                f" FROM (WITH RECURSIVE n(i) AS ({steps}) SELECT i FROM n) AS n"
            )
        )


def _typed(engine: Engine, name: str, value: str) -> str:
    is_time = name.endswith(("_at", "_for", "_until")) and engine.dialect.name == "postgresql"
    return f"CAST({value} AS timestamptz)" if is_time else value


def later(engine: Engine, time: str, minutes: str) -> str:
    """Return the SQL for *minutes* after *time*."""
    if engine.dialect.name == "postgresql":
        return f"(CAST({time} AS timestamptz) + make_interval(mins => {minutes}))"
    return f"strftime('%Y-%m-%d %H:%M:%f000', {time}, ({minutes}) || ' minutes')"


def run(engine: Engine, *statements: str) -> None:
    """Run statements, each in its own transaction."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.execute(text(statement))


@contextmanager
def tables_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Generator[Engine]:
    """Yield an empty database for many tests, on which PostgreSQL collects no statistics."""
    server: Server | None = None
    url = f"sqlite:///{folder / 'plans.sqlite'}"
    if kind == "postgresql":
        server = request.getfixturevalue("postgres_server")
        assert server is not None
        url = server.create_database()
    engine = create_engine(url)
    for table in create_tables(engine):
        if server is not None:
            run(engine, f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    yield engine
    engine.dispose()
    if server is not None:
        server.drop_database(url)


def cost(engine: Engine, statements: Iterable[tuple[str, Any]], ours: bool = True) -> int:
    """Return the cost in pages or, on SQLite, in hundreds of steps of its virtual machine.

    :param statements: as the driver gets them. Their changes are rolled back.

    :param ours: whether these are statements of bookkeeping, which sets PostgreSQL's planner.
    """
    if engine.dialect.name == "postgresql":
        how = ("ANALYZE", "BUFFERS")
        return sum(pages(explain(engine, *pair, *how, steady=ours)) for pair in statements)
    steps: list[None] = []
    with engine.connect() as connection:
        raw: Any = connection.connection.driver_connection
        raw.set_progress_handler(lambda: steps.append(None), 100)
        for statement, parameters in statements:
            result = connection.exec_driver_sql(statement, parameters)
            if result.returns_rows:
                result.all()
        raw.set_progress_handler(None, 0)
        connection.rollback()
    return len(steps)


@dataclass
class Sent:
    """The statements that were sent, with their parameters, in order.

    :ivar by_bookkeeping: those of a bookkeeping connection, each once.
    """

    statements: list[tuple[str, Any]] = field(default_factory=list)
    by_bookkeeping: dict[str, Any] = field(default_factory=dict)


@contextmanager
def sent_by(engine: Engine) -> Generator[Sent]:
    """Collect the statements that have a plan and are sent in this block."""
    sent = Sent()

    def see(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if re.match(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", statement):
            sent.statements.append((statement, parameters))
            if conn.connection.is_detached:
                sent.by_bookkeeping.setdefault(statement, parameters)

    event.listen(engine, "before_cursor_execute", see)
    yield sent
    event.remove(engine, "before_cursor_execute", see)


def explain(
    engine: Engine,
    statement: str,
    parameters: Mapping[str, Any],
    *options: str,
    steady: bool = True,
) -> Node:
    """Return PostgreSQL's plan of a statement; the option ``ANALYZE`` runs it and rolls it back.

    :param statement: as psycopg gets it.

    :param steady: plan it as a prepared statement of bookkeeping; otherwise as one of a page.
    """
    how = ", ".join((*options, "FORMAT JSON"))
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        if steady:
            connection.execute(SETTINGS)
            statement, parameters = _prepared(connection, statement, parameters), {}
        else:
            connection.execute("SELECT set_config(%s, %s, %s)", IN_ORDER)
        row = connection.execute(
            f"EXPLAIN ({how}) {statement}".encode(), parameters or None
        ).fetchone()
        connection.rollback()
    assert row is not None
    plan: Node = row[0][0]["Plan"]
    return plan


def _prepared(connection: psycopg.Connection, statement: str, parameters: Mapping[str, Any]) -> str:
    """Prepare a statement; return the text that executes it."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    numbered = re.sub(r"%\((\w+)\)s", number, statement).replace("%%", "%")
    connection.execute(f"PREPARE it AS {numbered}".encode())
    values = ", ".join(sql.Literal(parameters[name]).as_string(connection) for name in names)
    return f"EXECUTE it({values})" if names else "EXECUTE it"


def walked(engine: Engine, statement: str, parameters: Any) -> set[str]:
    """Return those of our tables and indexes that SQLite reads from end to end."""
    tables = "SELECT rootpage, name FROM sqlite_master WHERE type = 'table' AND name LIKE 'job%'"
    with engine.connect() as connection:
        names = {row.rootpage: row.name for row in connection.exec_driver_sql(tables)}
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
        steps = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).all()
    matches = [re.match(r"SCAN \w+ USING (?:COVERING )?INDEX (\w+)", row.detail) for row in plan]
    # The plan calls tables by their aliases, and omits the source of a Bloom filter.
    opened = {step.p1: names.get(step.p2) for step in steps if step.opcode == "OpenRead"}
    rewound = {opened.get(step.p1) for step in steps if step.opcode == "Rewind"}
    return {*(match[1] for match in matches if match), *(name for name in rewound if name)}


def nodes(plan: Node) -> Iterator[Node]:
    """Yield all nodes of a plan, from the top."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def paths(plan: Node) -> list[str]:
    """Return the indexes by which a plan reads the tables, and the conditions on them."""
    scans = [node for node in nodes(plan) if "Index Name" in node]
    scanned = sorted(f"{scan['Index Name']}: {scan.get('Index Cond')}" for scan in scans)
    return [re.sub(r"InitPlan \d+|\$\d+|_\d+", "…", path) for path in scanned]


def pages(plan: Node) -> int:
    """Return how many pages an analyzed plan read."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def faults(plan: Node) -> list[str]:
    """Return the nodes whose time grows with a table or with the square of a batch."""
    slow = []
    for node in nodes(plan):
        kind, table = node["Node Type"], node.get("Relation Name", "")
        if kind in ("Seq Scan", "Bitmap Heap Scan") and table.startswith("job_"):
            slow.append(f"{kind} on {table}")
        if kind == "Index Scan" and node["Index Name"].startswith("pk_") and not _searches(node):
            slow.append(f"walks along all of {table}")
        if kind in ("Nested Loop", "Merge Join") and not _is_lateral(node):
            slow.append(kind)
        if kind in ("Sort", "Incremental Sort") and any(map(_is_backlog, _sorted(node))):
            slow.append(f"{kind} of {node['Sort Key']}")
    return slow


def _searches(scan: Node) -> bool:
    return "Index Cond" in scan


def _is_lateral(join: Node) -> bool:
    """Return whether the inner side is a limit over rows of the outer row, read by an index."""
    inner = next(child for child in join["Plans"] if child["Parent Relationship"] == "Inner")
    if inner["Node Type"] == "Subquery Scan":  # This is a limit that locks its rows.
        (inner,) = inner["Plans"]
    return inner["Node Type"] == "Limit" and any(map(_searches, nodes(inner)))


def _sorted(sort: Node) -> Iterator[Node]:
    """Yield the nodes whose rows are sorted. Behind a limit, the rows are few."""
    for child in sort["Plans"]:
        if child.get("Parent Relationship") in ("Outer", "Inner", "Member", "Subquery"):
            yield child
            if child["Node Type"] != "Limit":
                yield from _sorted({"Plans": child.get("Plans", ())})


def _is_backlog(node: Node) -> bool:
    by_id = str(node.get("Index Cond", "")).startswith("(id = ANY")
    return node.get("Relation Name") == "job_runs" and not by_id
