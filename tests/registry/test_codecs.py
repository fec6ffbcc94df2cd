"""How values of annotated types become JSON, and come back."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NewType
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from flask_cronjobs.registry.codecs import ANY, Misfit, _of_class, codec_of


class Color(Enum):
    """Is stored by its values."""

    RED = "red"
    BLUE = "blue"


class Size(Enum):
    """Is stored by its names."""

    SMALL = (1, 2)


class Level(IntEnum):
    """Is stored as a number."""

    LOW = 1


class Right(IntFlag):
    """Has values that are no members."""

    READ = 1
    WRITE = 2


@dataclass
class Node:
    """Has itself inside."""

    day: date
    amount: Decimal = Decimal(0)
    inner: list[Node] = field(default_factory=list["Node"])


@dataclass
class Chain:
    """Counts how often it is made."""

    made: ClassVar[int] = 0
    day: date
    below: Chain | None = None

    def __post_init__(self) -> None:
        Chain.made += 1


@dataclass
class Card:
    """Says a value in an error."""

    number: str

    def __post_init__(self) -> None:
        raise ValueError(f"{self.number} is blocked")


@dataclass
class Left:
    """Contains itself or `Right_`."""

    below: Left | Right_ | None = None


@dataclass
class Right_:
    """Likewise."""

    below: Left | Right_ | None = None


class Plain:
    """Is no dataclass."""


ShopId = NewType("ShopId", int)

MOMENTS = st.datetimes(timezones=st.just(timezone.utc))
NODES = st.builds(
    Node,
    day=st.dates(),
    amount=st.decimals(allow_nan=False),
    inner=st.lists(st.builds(Node, day=st.dates()), max_size=2),
)

TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, st.integers()),
    "NewType": (ShopId, st.integers()),
    "Annotated": (Annotated[int, "one"], st.integers()),
    "float": (float, st.floats(allow_nan=False) | st.integers()),
    "str": (str, st.text()),
    "bool": (bool, st.booleans()),
    "None": (None, st.none()),
    "date": (date, st.dates()),
    "datetime": (datetime, MOMENTS),
    "time": (time, st.times()),
    "timedelta": (timedelta, st.timedeltas(timedelta(-10_000), timedelta(10_000))),
    "UUID": (UUID, st.uuids()),
    "Decimal": (Decimal, st.decimals(allow_nan=False)),
    "Enum": (Color, st.sampled_from(Color)),
    "Enum by name": (Size, st.sampled_from(Size)),
    "IntEnum": (Level, st.sampled_from(Level)),
    "IntFlag": (Right, st.sampled_from([*Right, Right.READ | Right.WRITE])),
    "Optional": (date | None, st.none() | st.dates()),
    "list": (list[date], st.lists(st.dates())),
    "dict": (dict[str, list[timedelta]], st.dictionaries(st.text(), st.just([timedelta(1)]))),
    "dated dict": (dict[date, Decimal], st.dictionaries(st.dates(), st.just(Decimal("1.50")))),
    "numbered dict": (dict[int, int], st.dictionaries(st.integers(), st.integers())),
    "dataclass": (Node, NODES),
    "all of them": (
        dict[str, list[Node | None]],
        st.dictionaries(st.text(), st.lists(NODES | st.none(), max_size=3)),
    ),
}


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_value_comes_back_from_its_json_which_is_taken_as_well(name: str, data: Any) -> None:
    hint, values = TYPES[name]
    codec, value = codec_of(hint), data.draw(values)
    plain = codec.encode(value)
    stored = json.loads(json.dumps(plain))
    assert stored == plain
    found = codec.read(stored)
    assert found == value
    assert type(found) is type(value)
    assert codec.encode(stored) == stored


@pytest.mark.parametrize("hint", [int, str, list[int], dict[str, float | None], bool])
def test_what_is_json_as_it_is_need_not_be_decoded(hint: Any) -> None:
    assert codec_of(hint).decode is None


STORED: list[tuple[Any, Any, Any]] = [
    (date, date(2026, 11, 24), "2026-11-24"),
    (datetime, datetime(2026, 11, 24, 9, tzinfo=timezone.utc), "2026-11-24T09:00:00+00:00"),
    (timedelta, timedelta(minutes=2), 120),
    (timedelta, timedelta(seconds=0.5), 0.5),
    (Decimal, Decimal("12.50"), "12.50"),
    (Color, Color.RED, "red"),
    (Size, Size.SMALL, "SMALL"),
    (dict[int, int], {5: 1}, {"5": 1}),
]


@pytest.mark.parametrize(("hint", "value", "plain"), STORED)
def test_stored_json_is_for_people_and_sql(hint: Any, value: Any, plain: Any) -> None:
    assert codec_of(hint).encode(value) == plain


def test_time_that_comes_twice_in_its_zone_is_taken() -> None:
    berlin = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert codec_of(datetime).encode(berlin) == "2026-10-25T02:30:00+01:00"
    assert codec_of(datetime).encode("2026-10-25T01:30:00Z") == "2026-10-25T01:30:00+00:00"


class Base(DeclarativeBase):
    """Of the one model."""


class User(Base):
    """A row."""

    __tablename__ = "user"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass
class Odd:
    """Takes more than an instance tells."""

    a: int
    b: InitVar[int]


REFUSED: list[tuple[Any, Any, str]] = [
    (int, True, "a whole number, got a value of type bool"),
    (int, 1.0, "a whole number, got a value of type float"),
    (float, False, "a number, got a value of type bool"),
    (bool, 1, "true or false, got a value of type int"),
    (date, "tomorrow", "a date such as 2026-11-24, got a value of type str"),
    (date, datetime(2026, 1, 1), "a date such as"),
    (datetime, datetime(2026, 1, 1), r"a time with a time zone, such as datetime\.now"),
    (timedelta, True, "a number of seconds, got a value of type bool"),
    (timedelta, 1e300, "a number of seconds"),
    (UUID, 5, "a UUID, got a value of type int"),
    (Decimal, 1.5, "a decimal number as text"),
    (Decimal, "NaN", "a decimal number as text"),
    (Decimal, Decimal("sNaN"), "a decimal number as text"),
    (dict[Decimal, int], {"sNaN": 1}, "a decimal number as text"),
    (Color, "green", "one of 'red', 'blue', got a value of type str"),
    (date | None, "x", "a date such as"),
    (list[int], [1, "x"], r"\[1\].*a whole number, got a value of type str"),
    (list[int], "12", "a list, got a value of type str"),
    (dict[str, date], {"a": {"b": 1}}, r"\['a'\].*a date"),
    (dict[int, int], {"a": 1}, "a whole number, got a value of type str"),
    (Node, {"day": "2026-01-01", "inner": [{"day": 1}]}, r"\.inner\[0\]\.day.*a date"),
    (Node, {}, r"\.day.*a date such as 2026-11-24, got nothing"),
    (
        Node,
        {"day": "2026-01-01", "color": 1},
        "one of the fields day, amount, inner, got a value of type str",
    ),
    (Node, Odd(1, 2), "an object with day, amount, inner, got a value of type Odd"),
]


@pytest.mark.parametrize(("hint", "value", "says"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(hint: Any, value: Any, says: str) -> None:
    codec = codec_of(hint)
    with pytest.raises(Misfit) as caught:
        codec.encode(value)
    misfit = caught.value
    assert re.search(says, f"{misfit.path} {misfit.expected}, got {misfit.got}")


@pytest.mark.parametrize("hint", [Any, object, Any | None, Annotated[Any, 1]])
def test_annotation_that_says_nothing_leaves_values_as_they_are(hint: Any) -> None:
    assert codec_of(hint) is ANY


@pytest.mark.parametrize("hint", [User, User | date, Plain, list[Plain]])
def test_value_of_a_type_that_nobody_knows_is_refused_with_a_sentence(hint: Any) -> None:
    with pytest.raises(Misfit) as caught:
        codec_of(hint).encode([1])
    assert "is none. Annotate with a type of the documentation" in caught.value.expected


PYDANTIC: list[tuple[Any, Any, Any]] = [
    (Literal["a", 1], "a", "a"),
    (Path, Path("a/b"), "a/b"),
    (set[int], {5}, [5]),
    (tuple[int, date], (1, date(2026, 1, 1)), [1, "2026-01-01"]),
    (int | date, date(2026, 1, 1), "2026-01-01"),
    (list[int | str], [1, "a"], [1, "a"]),
]


@pytest.mark.parametrize(("hint", "value", "plain"), PYDANTIC)
def test_other_types_are_stored_as_pydantic_does(hint: Any, value: Any, plain: Any) -> None:
    pytest.importorskip("pydantic")
    codec = codec_of(hint)
    assert codec.encode(value) == plain
    assert codec.encode(plain) == plain
    assert codec.read(plain) == value


def test_without_pydantic_the_message_says_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    _of_class.cache_clear()
    with pytest.raises(Misfit) as caught:
        codec_of(Literal["a", "b"]).encode("a")
    _of_class.cache_clear()
    assert "or install pydantic if it knows the type" in caught.value.expected


def test_model_of_pydantic_is_stored_by_its_own_means() -> None:
    pydantic = pytest.importorskip("pydantic")
    Order = pydantic.create_model("Order", day=(date, ...), to=(str, pydantic.Field(alias="For")))
    Login = pydantic.create_model("Login", word=(pydantic.SecretStr, ...))
    codec, order = codec_of(Order), Order(day="2026-11-24", For="a")
    assert codec.encode(order) == {"day": "2026-11-24", "For": "a"}
    assert codec.read(codec.encode(order)) == order
    assert codec.encode({"day": "2026-11-24", "For": "a"}) == codec.encode(order)
    with pytest.raises(Misfit) as caught:
        codec.encode({"day": "hunter2"})
    assert "day: Input should be a valid date" in caught.value.expected
    assert "hunter2" not in caught.value.expected
    with pytest.raises(Misfit) as caught:
        codec_of(Login).encode(Login(word="hunter2"))
    assert caught.value.expected == "Login, and all of it in its JSON"


def test_no_message_of_a_class_or_a_validator_tells_a_value() -> None:
    pydantic = pytest.importorskip("pydantic")

    def refuse(value: str) -> str:
        raise ValueError(f"{value} is blocked")

    checked = Annotated[str, pydantic.AfterValidator(refuse)]
    Checked = pydantic.create_model("Checked", number=(checked, ...))
    for hint, value in ((Card, {"number": "hunter2"}), (Checked, {"number": "hunter2"})):
        for convert in (codec_of(hint).encode, codec_of(hint).read):
            with pytest.raises(Misfit) as caught:
                convert(value)
            assert "hunter2" not in f"{caught.value.expected} {caught.value.got}"


def test_a_union_of_types_that_contain_it_is_refused() -> None:
    pytest.importorskip("pydantic")
    with pytest.raises(Misfit) as caught:
        codec_of(Left).encode({"below": {"below": None}})
    assert "discriminator" in caught.value.expected
    assert codec_of(Node | None).encode({"day": "2026-01-01", "inner": []}) is not None
