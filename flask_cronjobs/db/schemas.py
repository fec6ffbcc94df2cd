"""Where PostgreSQL looks for the job tables, and which rights a role lacks to use them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from .engines import IN_MEMORY, connect_apart, how_to_migrate, is_in_memory


def existing_tables(connection: Connection) -> set[str]:
    """Return which job tables a statement on *connection* finds.

    SQLAlchemy would list the tables of the schema that was the default when the engine first
    connected, but a listener or a statement of the session may have set another one since.
    """
    from ..models import JobRun  # It maps the tables, which a tick does not need.

    inspector = inspect(connection)
    return {name for name in JobRun.metadata.tables if inspector.has_table(name)}


def are_complete(connection: Connection) -> bool:
    """Return whether a statement on *connection* finds all job tables."""
    from ..models import JobRun

    return existing_tables(connection) == {*JobRun.metadata.tables}


def how_to_create_tables(engine: Engine) -> str:
    """Return how to make this app find the job tables, by a command or otherwise.

    In an app with migrations, ``init`` would do harm: the next migration would find nothing to
    create, so other databases would never get the tables.
    """
    if is_in_memory(engine):  # No command can create them there.
        return IN_MEMORY.removesuffix(".")
    create = how_to_migrate(engine) or "Run: flask jobs admin init"
    return looked_elsewhere(engine, f" If they are not: {create}") or create


class _Places(NamedTuple):
    """Where a new connection looks for tables named without a schema, and where job tables exist.

    :ivar role: the connection's role, quoted for SQL.
    :ivar path: its ``search_path``.
    :ivar looked_in: the schemas of the path that exist and that the role may use.
    :ivar usable: the schemas with job tables that the role may use.
    :ivar barred: the schemas with job tables that the role may not use.
    """

    role: str
    path: str
    looked_in: Sequence[str]
    usable: Sequence[str]
    barred: Sequence[str]


def _with_runs(condition: str) -> str:
    return f"""ARRAY(
        SELECT CAST(n.nspname AS text) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = 'job_runs' AND c.relkind IN ('r', 'p')
            AND {condition} has_schema_privilege(n.oid, 'USAGE') ORDER BY 1
    )"""


_PLACES = f"""
    SELECT quote_ident(current_user), current_setting('search_path'),
        CAST(current_schemas(false) AS text[]), {_with_runs("")}, {_with_runs("NOT")}
"""


def looked_elsewhere(engine: Engine, otherwise: str = "") -> str | None:
    """Return why a statement may not have found job tables that exist, and what to do.

    :param otherwise: what to do if the existing tables belong to another app.
    :returns: None if no reason is known.
    """
    if engine.dialect.name != "postgresql":
        return None
    try:
        with connect_apart(engine) as connection:
            places = _Places(*connection.execute(text(_PLACES)).one())
            is_complete = are_complete(connection)
    except SQLAlchemyError:
        return None
    if is_complete:
        return (
            f"New connections find them through the search_path {places.path}, but this connection "
            "has a different one. Add the schema of the job tables to it"
        )
    path_schemas = re.findall(r"[\w$]+", places.path.replace("$user", places.role))
    if schemas := [schema for schema in places.barred if schema in path_schemas]:
        return (
            f"They are in the schema {schemas[0]}, which the role {places.role} may not use. Let "
            f"its owner run: GRANT USAGE ON SCHEMA {schemas[0]} TO {places.role}"
        )
    if not places.looked_in:
        return (
            f"The search_path is {places.path}, and none of its schemas exists, or the role "
            f"{places.role} may use none. Create one, or correct the search_path"
        )
    if places.usable and not {*places.looked_in}.intersection(places.usable):
        return (
            f"Connections look in the schema {', '.join(places.looked_in)}, but the job tables "
            f"are in {', '.join(places.usable[:3])}. If they are this app's, let all connections "
            "look there: SQLALCHEMY_ENGINE_OPTIONS = {'connect_args': {'options': "
            f"'-csearch_path={places.usable[0]}'}}}}.{otherwise}"
        )
    return None


_OURS = re.compile(r"\bjob_[a-z]+(?:_id_seq)?\b")


def missing_right(error: Any, engine: Engine) -> str | None:
    """Return how to grant the missing right that caused *error*; None if that is unknown.

    The text of the error may be in another language, so this searches it only for names.

    :param error: an error of psycopg or psycopg2.
    """
    message = str(error.diag.message_primary)
    table, schema = _OURS.search(message), re.search(r"schema (\S+)", message, re.IGNORECASE)
    if table is None:
        if schema is None:
            return None
        return f"Let its owner run: GRANT USAGE, CREATE ON SCHEMA {schema[1]} TO {_role(engine)}"
    name, role = table[0], _role(engine)
    if error.diag.source_function == "ExecWithCheckOptions":
        return policy(name, role)
    rights = "USAGE ON SEQUENCE" if name.endswith("_seq") else "SELECT, INSERT, UPDATE, DELETE ON"
    return f"Let its owner run: GRANT {rights} {name} TO {role}"


def policy(table: str, role: str) -> str:
    """Return how to make row-level security show all rows of *table* to *role*."""
    return f"Let its owner run: CREATE POLICY cronjobs ON {table} TO {role} USING (true)"


def _role(engine: Engine) -> str:
    try:
        with connect_apart(engine) as connection:
            return str(connection.scalar(text("SELECT quote_ident(current_user)")))
    except SQLAlchemyError:
        return engine.url.username or "…"
