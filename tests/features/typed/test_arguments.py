"""Typed arguments are checked and encoded when enqueued, and decoded before the call."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from flask_cronjobs import CronJobs, PayloadError
from flask_cronjobs import testing as helpers
from flask_cronjobs.features.typed import arguments
from flask_cronjobs.features.typed.codecs import Codec
from flask_cronjobs.models import JobDefinition, JobRun
from tests.marks import on_both
from tests.rows import the_run

if TYPE_CHECKING:
    from _typeshed import Incomplete

pytestmark = pytest.mark.usefixtures("context")


class Kind(Enum):
    """The kinds of messages to send."""

    SHORT = "short"
    LONG = "long"


@dataclass
class Order:
    """An order of a shop."""

    id: int
    due: date | None = None


@dataclass
class Parcel:
    """A class that names a type that does not exist yet."""

    size: NotYet


GIVEN: dict[str, Any] = {
    "day": date(2026, 11, 24),
    "since": datetime(2026, 1, 1, tzinfo=timezone.utc),
    "orders": [Order(1, date(2026, 1, 2)), Order(2)],
    "kind": Kind.LONG,
    "pause": timedelta(minutes=1),
    "price": Decimal("1.50"),
}
STORED: dict[str, Any] = {
    "day": "2026-11-24",
    "since": "2026-01-01T00:00:00+00:00",
    "orders": [{"id": 1, "due": "2026-01-02"}, {"id": 2, "due": None}],
    "kind": "long",
    "pause": 60,
    "price": "1.50",
}


@pytest.fixture
def seen() -> list[dict[str, Any]]:
    """The arguments with which handlers were called."""
    return []


@pytest.fixture
def report(jobs: CronJobs, seen: list[dict[str, Any]]) -> str:
    """The name of a task that notes its arguments."""

    @jobs.task(retry=False)
    def report(
        day: date,
        since: datetime | None = None,
        orders: list[Order] = [],  # noqa: B006
        kind: Kind = Kind.SHORT,
        pause: timedelta = timedelta(0),
        **more: Decimal,
    ) -> None:
        arguments = {"day": day, "since": since, "orders": orders, "kind": kind, "pause": pause}
        seen.append(arguments | more)

    return "report"


@on_both
@pytest.mark.parametrize("arguments", [GIVEN, STORED], ids=["values", "JSON"])
def test_values_and_their_json_are_stored_alike_and_decoded_for_the_call(
    jobs: CronJobs, db: SQLAlchemy, report: str, seen: list[Any], arguments: dict[str, Any]
) -> None:
    jobs.get(report).using(commit=True).enqueue(**arguments)
    jobs.get(report).using(commit=True).enqueue_many([arguments, arguments])
    jobs.enqueue(report, arguments, commit=True)
    payloads = db.session.scalars(select(JobRun.payload)).all()
    assert payloads == [STORED] * 4
    assert jobs.tick().succeeded == 4
    assert seen == [GIVEN] * 4


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("atomic", [False, True])
def test_each_kind_of_handler_gets_values(
    jobs: CronJobs, seen: list[Any], is_async: bool, atomic: bool
) -> None:
    def plain(day: date) -> None:
        seen.append(day)

    async def coroutine(day: date) -> None:
        seen.append(day)

    task = jobs.task(name="it", atomic=atomic)(coroutine if is_async else plain)
    task.using(commit=True).enqueue(date(2026, 1, 1))
    jobs.tick()
    helpers.run("it", day=date(2026, 1, 1))
    assert seen == [date(2026, 1, 1)] * 2


def test_schedule_then_and_operator_give_values_or_json(
    jobs: CronJobs, db: SQLAlchemy, report: str, seen: list[Any]
) -> None:
    task, day = jobs.get(report), date(2026, 1, 1)
    task.schedule("@yearly", name="yearly", payload={"day": day})
    with jobs.batch("all", then=task, then_payload={"day": day}):
        pass
    db.session.commit()
    jobs.run_now(report, {"day": "2026-01-01"})
    jobs.tick()
    jobs.run_now("yearly")
    jobs.tick()
    assert [arguments["day"] for arguments in seen] == [day] * 3
    assert db.session.scalars(select(JobDefinition.payload)).one() == {"day": "2026-01-01"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"day": "tomorrow"}, r"^day: expected a date such as 2026-11-24, got a value of type str\.$"),
    ({"day": None}, "^day: expected a date such as 2026-11-24, got a value of type NoneType"),
    ({"day": "2026-01-01", "since": datetime(2026, 1, 1)}, "^since: expected a time with a time"),
    (
        {"day": "2026-01-01", "orders": [{"id": "x"}]},
        r"^orders\[0\]\['id'\]: expected a whole number",
    ),
    ({"day": "2026-01-01", "token": "hunter2"}, "^token: .* got a value of type str"),
    (
        {"day": "2026-01-01", "rate": "1,5"},
        "^rate: expected a decimal number .* got a value of type str",
    ),
]


@pytest.mark.parametrize(("payload", "says"), REFUSED)
def test_what_does_not_fit_is_refused_by_name_and_nothing_stored(
    jobs: CronJobs, db: SQLAlchemy, report: str, payload: dict[str, Any], says: str
) -> None:
    with pytest.raises(PayloadError, match=says):
        jobs.enqueue(report, payload)
    with pytest.raises(PayloadError, match=says.replace("^", r"^payloads\[0\]: ")):
        jobs.get(report).enqueue_many([payload])
    with pytest.raises(PayloadError, match=says):
        jobs.get(report).schedule("@yearly", name="it", payload=payload)
    with pytest.raises(PayloadError, match=says):
        jobs.run_now(report, payload)
    assert db.session.scalars(select(JobRun)).all() == []


def test_stored_payload_that_does_not_fit_fails_the_attempt_with_field_and_run(
    jobs: CronJobs, db: SQLAlchemy, report: str
) -> None:
    run = jobs.enqueue(report, {"day": "2026-01-01"})
    run.payload = {"day": "hunter2"}
    db.session.commit()
    jobs.tick()
    row = the_run(db)
    assert (row.status, row.error_type) == ("dead", "PayloadError")
    assert str(row.last_error).startswith(
        f"The payload of run {row.id} does not fit report: day: expected a date such as "
        "2026-11-24, got a value of type str. Retry it with another payload"
    )


class Base(DeclarativeBase):
    """The base class of the one model."""


class User(Base):
    """A model."""

    __tablename__ = "user"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_row_is_refused_with_the_advice_to_pass_its_id(jobs: CronJobs) -> None:
    jobs.task(name="plain")(lambda user: None)

    @jobs.task
    def typed(user: User) -> None: ...

    @jobs.task
    def by_id(user: int) -> None: ...

    for name in ("plain", "typed", "by_id"):
        with pytest.raises(PayloadError, match=r"payload\['user'\] is a row .*type User.*its id"):
            jobs.enqueue(name, {"user": User(id=5)})


class TestAnnotationThatSaysNothing:
    def test_leaves_all_as_it_was(self, jobs: CronJobs, seen: list[Any]) -> None:
        @jobs.task
        def it(a, b: Any, c: Incomplete, d: Later) -> None:
            seen.append([a, b, c, d])

        payload = {"a": "x", "b": 1, "c": [None], "d": "2026-01-01"}
        jobs.enqueue("it", payload, commit=True)
        jobs.tick()
        assert seen == [["x", 1, [None], date(2026, 1, 1)]]
        for name in "abc":
            with pytest.raises(PayloadError, match="of type date, which JSON cannot hold"):
                jobs.enqueue("it", {**payload, name: date(2026, 1, 1)})

    def test_may_name_what_is_defined_after_the_schedule(
        self, jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        payload = {"day": "2026-01-01", "much": 1, "parcel": {"size": 1}}

        @jobs.task(schedule="@yearly", payload=payload)
        def it(day: date, much: NotYet, parcel: Parcel) -> None: ...

        monkeypatch.setitem(globals(), "NotYet", int)
        with pytest.raises(
            PayloadError, match="much: expected a whole number, got a value of type str"
        ):
            jobs.enqueue("it", {**payload, "much": "x"})
        with pytest.raises(
            PayloadError,
            match=r"parcel\['size'\]: expected a whole number, got a value of type str",
        ):
            jobs.enqueue("it", {**payload, "parcel": {"size": "x"}})


def test_type_that_cannot_be_stored_is_refused_where_a_value_is_given(jobs: CronJobs) -> None:
    @jobs.task
    def it(user: User | None = None) -> None: ...

    jobs.enqueue("it")
    with pytest.raises(PayloadError, match=r"^user: the type User cannot be stored\. Annotate"):
        jobs.enqueue("it", {"user": 5})
    with pytest.raises(PayloadError, match=r"^user: the type User cannot be stored\. Annotate"):
        it.schedule("@yearly", name="yearly", payload={"user": 5})


def test_large_value_is_refused_before_it_is_converted(
    jobs: CronJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    @jobs.task
    def it(days: list[date], order: Order | None = None) -> None: ...

    jobs.enqueue("it", {"days": ["2026-01-01"]})
    monkeypatch.setattr(arguments, "codec_for", lambda *_: Codec("nothing", pytest.fail))
    payloads: list[dict[str, Any]] = [
        {"days": ["2026-01-01"] * 800_000},
        {"days": [Order("x" * 70_000)]},  # type: ignore[arg-type]
        {"days": b"x" * 70_000},
        {"days": ["2026-01-01"] * 5_000, "order": {"id": "x" * 20_000}},
    ]
    for payload in payloads:
        with pytest.raises(PayloadError, match="larger than 65,536 bytes"):
            jobs.enqueue("it", payload)


Later = date
if TYPE_CHECKING:
    NotYet = int


def test_concurrency_key_is_made_of_what_is_stored(jobs: CronJobs) -> None:
    @jobs.task(concurrency_key="{day}:{kind}:{since}")
    def it(day: date, kind: Kind = Kind.SHORT, since: datetime | None = None) -> None: ...

    for day in (date(2026, 1, 1), "2026-01-01"):
        assert jobs.enqueue("it", {"day": day}).concurrency_key == "2026-01-01:short:None"
