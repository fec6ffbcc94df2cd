"""When PostgreSQL vacuums a job table: its storage parameters."""

from __future__ import annotations

from sqlalchemy import DDL, Table, __version__, event

#: Each run leaves two dead entries in the indexes of what waits, and each claim passes over all
#: those that no vacuum has removed. So vacuum after 10,000 dead rows and one in a hundred, not
#: after one in five; and clean the indexes each time, which a vacuum omits where few pages of the
#: table have changed.
VACUUM_OFTEN: dict[str, object] = {
    "autovacuum_vacuum_scale_factor": 0.01,
    "autovacuum_vacuum_threshold": 10_000,
    "vacuum_index_cleanup": "on",
}
#: The parameters of each table that has some.
STORAGE: dict[str, dict[str, object]] = {"job_runs": VACUUM_OFTEN}

_IS_OPTION = tuple(int(part) for part in __version__.split(".")[:2]) >= (2, 1)


def storage_options(name: str) -> dict[str, object]:
    """Return the options of the table *name* that set its storage parameters.

    SQLAlchemy 2.0 has no such option: there, `set_when_created` sets them.
    """
    return {"postgresql_with": STORAGE[name]} if _IS_OPTION else {}


def storage_statement(name: str, parameters: dict[str, object]) -> str:
    """Return the statement that sets *parameters* of the table *name*."""
    values = ", ".join(f"{key} = {value}" for key, value in parameters.items())
    return f"ALTER TABLE {name} SET ({values})"


def set_when_created(table: Table) -> None:
    """Set the parameters of *table* after it was created, if no option does."""
    if table.name in STORAGE and not _IS_OPTION:
        text = storage_statement(table.name, STORAGE[table.name])
        statement = DDL(text)  # type: ignore[no-untyped-call]
        event.listen(table, "after_create", statement.execute_if(dialect="postgresql"))
