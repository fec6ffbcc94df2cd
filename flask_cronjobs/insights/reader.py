"""Read everything that a page or a command shows over one connection, at one moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timezone
from functools import cached_property, wraps
from typing import Any, Generic, TypeAlias, TypeVar, cast

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Row,
    ScalarSelect,
    String,
    Table,
    TableValuedAlias,
    all_,
    any_,
    event,
    func,
    literal,
    literal_column,
    select,
    text,
    tuple_,
)
from sqlalchemy.exc import SQLAlchemyError

from ..core.app_state import State
from ..db.dialect import Dialect, dialect_of, load_odd_values
from ..db.engines import is_shared, without_echo
from ..db.errors import explain
from ..db.shared_connection import borrowed
from ..models import JobRun
from ..models.conditions import HAS_SHARE, ODD, OPEN_BATCH, OPEN_EFFECT, SNOOZED
from ..text.humanize import plural
from ..types import stored_time

BATCHES: Table = JobRun.metadata.tables["job_batches"]
RUNS: Table = JobRun.metadata.tables["job_runs"]
DEFINITIONS: Table = JobRun.metadata.tables["job_definitions"]
FAILURES: Table = JobRun.metadata.tables["job_failures"]
OUTPUTS: Table = JobRun.metadata.tables["job_outputs"]
OPERATIONS: Table = JobRun.metadata.tables["job_operations"]
STEPS: Table = JobRun.metadata.tables["job_steps"]
EFFECTS: Table = JobRun.metadata.tables["job_effects"]
PAUSES: Table = JobRun.metadata.tables["job_pauses"]
RATES: Table = JobRun.metadata.tables["job_rates"]
TICKS: Table = JobRun.metadata.tables["job_ticks"]

#: A PostgreSQL setting for the transaction of a page; `Reader.now` says why.
IN_ORDER = ("enable_bitmapscan", "off", True)

#: A SELECT. SQLAlchemy 2.0 and 2.1 type its columns differently; no annotation fits both.
Query: TypeAlias = Any


@dataclass
class Reader:
    """An open connection that only reads, for one page or one command.

    :ivar results: the results of reports that are marked with `read_once`.
    """

    state: State
    connection: Connection
    results: dict[object, Any] = field(default_factory=dict[object, Any], repr=False)

    @property
    def dialect(self) -> Dialect:
        """The dialect of the database."""
        return dialect_of(self.connection.engine)

    @cached_property
    def now(self) -> datetime:
        """The database's now, read once, so that a page shows one moment.

        On PostgreSQL, this also turns off bitmap scans for the transaction, so that the latest rows
        are read in the order of an index. Otherwise, if a definition has far more runs than others,
        PostgreSQL would read and sort them all.
        """
        now: ColumnElement[Any] = literal_column(self.dialect.now)
        opening = [now.label("database_now")]
        if not self.dialect.one_writer:
            opening.append(func.set_config(*IN_ORDER).label("in_order"))
        return stored_time(self.rows(select(*opening))[0].database_now)

    def value(self, statement: Executable) -> object:
        """Return the value of a statement with one row and one column."""
        return self.rows(statement)[0][0]

    def rows(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        """Return all rows of *statement*."""
        return self.connection.execute(statement, parameters or {}).all()


def is_one_of(
    reader: Reader, column: ColumnElement[int], ids: Iterable[int]
) -> ColumnElement[bool]:
    """Return the condition that *column* is among *ids*, which are sent as one parameter."""
    if reader.dialect.one_writer:
        return column.in_(select(_each(list(ids)).c.value))
    return column == any_(literal(list(ids), ARRAY(BigInteger)))


def is_none_of(
    reader: Reader, column: ColumnElement[str], names: Iterable[str]
) -> ColumnElement[bool]:
    """Return the condition that *column* is not among *names*, which are sent as one parameter."""
    if reader.dialect.one_writer:
        return column.not_in(select(_each(list(names)).c.value))
    return column != all_(literal(list(names), ARRAY(String)))


def values_of(reader: Reader, values: Sequence[str]) -> TableValuedAlias:
    """Return *values*, sent as one parameter, as a table with the column ``value``."""
    if reader.dialect.one_writer:
        return _each(values)
    values_array = literal(list(values), ARRAY(String))
    return func.unnest(values_array).table_valued("value").render_derived()


def _each(values: Sequence[object]) -> TableValuedAlias:
    return func.json_each(json.dumps(values)).table_valued("value")


def _load_odd_values(connection: Connection, cursor: Any, *rest: object) -> None:
    # This is set on each cursor, since the connection belongs to the app's pool.
    load_odd_values(cursor)


#: The source of a report: an app's state, or a `Reader` that several reports share.
Source: TypeAlias = State | Reader


@contextmanager
def reading(source: Source) -> Generator[Reader, None, None]:
    """Open a `Reader` on a connection of its own, or yield the given `Reader`.

    If a test gives the session the only connection, the reader uses that.

    :raises TablesMissing: the job tables do not exist.
    :raises DatabaseTrouble: the database cannot be read.
    """
    if isinstance(source, Reader):
        yield source
        return
    database = source.database
    engine, shared = database.engine, is_shared(database)
    try:
        with borrowed(database) if shared else without_echo(engine).connect() as connection:
            if not (shared or dialect_of(engine).one_writer):
                event.listen(connection, "before_cursor_execute", _load_odd_values)
            reader = Reader(source, connection)
            _ = reader.now  # The opening statement.
            yield reader
    except SQLAlchemyError as error:
        raise explain(error, engine) from error


T = TypeVar("T")


def read_once(report: Callable[[Reader], T]) -> Callable[[Source], T]:
    """Make *report* read once for each `Reader`, however many parts of a page ask for it."""

    @wraps(report)
    def read(source: Source) -> T:
        with reading(source) as reader:
            if report not in reader.results:
                reader.results[report] = report(reader)
            return cast("T", reader.results[report])

    return read


#: Rows that few apps have, by name. Further queries about them run only if such rows exist.
_RARE = {
    "shares": f"job_runs WHERE {HAS_SHARE}",
    "snoozed": f"job_runs WHERE {ODD} AND {SNOOZED}",
    "effects": f"job_effects WHERE {OPEN_EFFECT}",
    "open_batches": f"job_batches WHERE {OPEN_BATCH} AND closed_at IS NULL",
}
_EXIST = ", ".join(f"EXISTS (SELECT 1 FROM {rows}) AS {name}" for name, rows in _RARE.items())


@read_once
def present(reader: Reader) -> frozenset[str]:
    """Return the names of `_RARE` whose rows exist."""
    (row,) = reader.rows(text(f"SELECT {_EXIST}"))
    return frozenset(name for name in _RARE if getattr(row, name))


def steps(column: ColumnElement[Any], *where: Any, most: int) -> Query:
    """Return a SELECT of the highest distinct values of *column*, as ``value``.

    It steps from value to value through an index, however many rows have the same value.
    """
    highest = select(func.max(column).label("value")).where(*where)
    values = highest.cte("steps", recursive=True)
    following = highest.where(column < values.c.value).scalar_subquery()
    values = values.union_all(select(following).where(values.c.value.is_not(None)))
    return select(values.c.value).where(values.c.value.is_not(None)).limit(most)


#: The number of rows at which counting stops.
CAP = 1000


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows, counted up to a cap.

    :ivar capped: whether there are more rows, so that the text is ``1,000+``.
    """

    value: int
    capped: bool = False

    def __str__(self) -> str:
        return f"{self.value:,}{'+' if self.capped else ''}"

    def of(self, noun: str) -> str:
        """Return ``1 run``, ``2 runs``, ``1,000+ runs``."""
        return f"{self} {noun}s" if self.capped else plural(self.value, noun)

    def shown(self, number: int, noun: str) -> str:
        """Return how many of the rows are shown if *number* are, such as ``50 of 71 groups``."""
        return self.of(noun) if Count(number) == self else f"{number:,} of {self.of(noun)}"

    def __bool__(self) -> bool:
        """Return whether there are rows, or may be: a capped 0 says only that none was found."""
        return self.value > 0 or self.capped


def count_of(value: int) -> Count:
    """Return the count for *value*, which was counted up to `CAP` plus one."""
    return Count(min(value, CAP), value > CAP)


#: A column with the number of rows that a SELECT would have without its limit.
NUMBER: Query = func.count().over().label("number")


def number_of(rows: Sequence[Row[Any]]) -> Count:
    """Return the `NUMBER` of *rows*."""
    return Count(rows[0].number if rows else 0)


def capped(statement: Query) -> ScalarSelect[int]:
    """Return a subquery that counts the rows of *statement*, up to `CAP` plus one."""
    limited_rows = statement.limit(CAP + 1).subquery()
    return select(func.count()).select_from(limited_rows).scalar_subquery()


def record(kind: type[T], row: Any, /, **others: Any) -> T:
    """Return a *kind*, a dataclass: fields that are not in *others* come from columns of *row*."""
    names = (field.name for field in fields(cast("Any", kind)) if field.name not in others)
    return kind(**{name: getattr(row, name) for name in names}, **others)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """The rows of a page.

    :ivar next: the id or key of the last row, after which the next page begins; None on the last
        page.
    :ivar now: the database's now.
    :ivar total: the number of all rows, for a list that has only one page.
    """

    rows: Sequence[T]
    next: Any
    now: datetime
    total: Count | None = None

    def cut(self, noun: str) -> str:
        """Return the number shown, such as ``50 of 71 hosts``; an empty text if all are shown."""
        if self.total is None or self.total == Count(len(self.rows)):
            return ""
        return self.total.shown(len(self.rows), noun)


def page_of(
    reader: Reader,
    statement: Query,
    limit: int,
    convert: Callable[[Sequence[Row[Any]]], Sequence[Any]] = list,
    newest: Sequence[ColumnElement[Any]] = (),
    before: int | None = None,
) -> Page[Any]:
    """Return a page of at most *limit* rows of *statement*, and whether there are more.

    :param convert: converts the rows for the page.
    :param newest: the columns that order the newest row first, ending with the id; none if
        *statement* is already ordered.
    :param before: return only rows after the row with this id.
    """
    if before is not None:
        last_row = select(*newest).where(newest[-1] == before).scalar_subquery()
        is_older = tuple_(*newest) < last_row if len(newest) > 1 else newest[-1] < before
        statement = statement.where(is_older)
    statement = statement.order_by(*(column.desc() for column in newest))
    rows = reader.rows(statement.limit(limit + 1))
    last_id = rows[limit - 1].id if len(rows) > limit else None
    return Page(convert(rows[:limit]), last_id, reader.now)


def plain_data(value: Any) -> Any:
    """Convert *value* for JSON: records to objects, and times to ISO 8601 texts in UTC."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if (as_dict := getattr(value, "_asdict", None)) is not None:  # A named tuple, or a row.
        return plain_data(as_dict())
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    if isinstance(value, (list, tuple)):
        return [plain_data(member) for member in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: plain_data(member) for key, member in members.items()}
    return value
