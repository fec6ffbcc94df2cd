"""The doctor's check that the database role has the rights that jobs need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Table, text
from sqlalchemy.exc import SQLAlchemyError

from ..db.dialect import dialect_of
from ..db.errors import first_line, what_to_do
from ..db.schemas import policy
from ..errors import DatabaseTrouble
from ..models import JobRun
from .health_checks import Finding
from .reader import Reader


class _RollBack(Exception):
    """Raised to roll a transaction back."""


def rights(reader: Reader) -> Iterator[Finding]:
    """Try the statements of jobs on each table, in a transaction that is rolled back.

    On SQLite, a bookkeeping transaction begins with BEGIN IMMEDIATE, so it needs write access.
    """
    errors: list[BaseException] = []

    def attempt(connection: Connection) -> None:
        errors[:] = _refused(connection)
        raise _RollBack

    with reader.state.bookkeeping() as books, books.trying_once():
        try:
            books.transaction(attempt)
        except _RollBack:
            pass
        except DatabaseTrouble as trouble:
            if trouble.transient:  # Another process is writing, so the file is writable.
                return
            errors.append(trouble.__cause__ or trouble)
    engine, causes = (
        reader.state.engine,
        [getattr(error, "orig", None) or error for error in errors],
    )
    findings = [_finding(first_line(cause), what_to_do(cause, engine)) for cause in causes]
    if not reader.dialect.one_writer:
        findings += _hidden(reader)
    yield from dict.fromkeys(findings)  # A read-only file gives the same error for all tables.
    if not findings:
        yield Finding("rights", "ok", "the database role may read and write all job tables")


def _finding(what: str, todo: str | None) -> Finding:
    return Finding("rights", "error", what, todo or "")


def _refused(connection: Connection) -> Iterator[BaseException]:
    """Yield the first error of each table and of each id sequence."""
    for table in JobRun.metadata.sorted_tables:
        for statements in _uses(connection, table):
            connection.exec_driver_sql("SAVEPOINT cronjobs_rights")
            try:
                for statement in statements:
                    connection.exec_driver_sql(statement)
            except SQLAlchemyError as error:
                yield error
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT cronjobs_rights")


def _uses(connection: Connection, table: Table) -> Iterator[Sequence[str]]:
    """Yield statements that need all rights on *table*, and on its id sequence.

    They affect no row, so no constraint and no row trigger of the app can interfere.
    """
    name, columns = table.name, table.columns.keys()
    nothing, same = ", ".join(["NULL"] * len(columns)), ", ".join(f"{c} = {c}" for c in columns)
    yield (
        f"SELECT {', '.join(columns)} FROM {name} WHERE 1 = 0",
        f"INSERT INTO {name} ({', '.join(columns)}) SELECT {nothing} WHERE 1 = 0",
        f"UPDATE {name} SET {same} WHERE 1 = 0",
        f"DELETE FROM {name} WHERE 1 = 0",
    )
    if not dialect_of(connection.engine).one_writer:
        yield (f"SELECT nextval(pg_get_serial_sequence('{name}', 'id'))",)


#: Selects a table where row-level security may hide rows from the role or refuse them: either
#: there is a kind of statement for which no policy lets all rows pass, or a restrictive policy
#: exists.
_HIDDEN = """
    SELECT c.relname, quote_ident(current_user) AS role FROM pg_class c
    WHERE c.oid = CAST(:name AS regclass) AND row_security_active(c.oid) AND (
        EXISTS (SELECT 1 FROM pg_policy p WHERE p.polrelid = c.oid AND NOT p.polpermissive)
        OR EXISTS (
            SELECT 1 FROM unnest(ARRAY['r', 'a', 'w', 'd']) AS kind(name) WHERE NOT EXISTS (
                SELECT 1 FROM pg_policy p
                WHERE p.polrelid = c.oid AND CAST(p.polcmd AS text) IN ('*', kind.name)
                    AND COALESCE(pg_get_expr(p.polqual, c.oid), 'true') = 'true'
                    AND COALESCE(pg_get_expr(p.polwithcheck, c.oid), 'true') = 'true'
                    AND EXISTS (
                        SELECT 1 FROM unnest(p.polroles) AS member(role)
                        WHERE member.role = 0 OR pg_has_role(current_user, member.role, 'USAGE')
                    )
            )
        )
    )
"""


def _hidden(reader: Reader) -> Iterator[Finding]:
    for table in JobRun.metadata.sorted_tables:
        for row in reader.rows(text(_HIDDEN), {"name": table.name}):
            what = f"row-level security may hide rows of {row.relname} from the role {row.role}"
            yield _finding(what, policy(row.relname, row.role))
