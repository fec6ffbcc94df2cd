"""How values of annotated types become JSON, and come back."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NewType, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from flask_cronjobs.features.typed.codecs import ANY, Misfit, _of_class, at, codec_of


class Color(Enum):
    """An enum stored by its values."""

    RED = "red"
    BLUE = "blue"


class Size(Enum):
    """An enum stored by its names."""

    SMALL = (1, 2)


class Level(IntEnum):
    """An enum stored as a number."""

    LOW = 1


class Right(IntFlag):
    """A flag with values that are no members."""

    READ = 1
    WRITE = 2


@dataclass
class Node:
    """A class that contains itself."""

    day: date
    amount: Decimal = Decimal(0)
    inner: list[Node] = field(default_factory=list["Node"])


@dataclass
class Chain:
    """A class that counts its instances."""

    made: ClassVar[int] = 0
    day: date
    below: Chain | None = None

    def __post_init__(self) -> None:
        Chain.made += 1


@dataclass
class Card:
    """A class whose error quotes a value."""

    number: str

    def __post_init__(self) -> None:
        raise ValueError(f"{self.number} is blocked")


@dataclass
class Left:
    """Contains itself or `Right_`."""

    below: Left | Right_ | None = None


@dataclass
class Right_:
    """Contains itself or `Left`."""

    below: Left | Right_ | None = None


@dataclass
class Above:
    """Contains itself in a list or in a tuple."""

    below: list[Above] | tuple[Above, ...]


@dataclass
class Metadata:
    """Has fields with the names of keys of pydantic's schemas."""

    metadata: Metadata | list[Metadata] | int
    type: int = 0
    ref: int = 0
    schema_ref: int = 0


class Plain:
    """A class that is no dataclass."""


#: These are values, since mypy would read ``list[below]`` as a type.
_LIST, _DICT, _TUPLE, _ANNOTATED = (cast("Any", kind) for kind in (list, dict, tuple, Annotated))
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
@settings(max_examples=30)
@given(data=st.data())
def test_value_comes_back_from_its_json_which_is_taken_as_well(name: str, data: Any) -> None:
    hint, values = TYPES[name]
    codec, value = codec_of(hint), data.draw(values)
    plain = codec.encode(value)
    stored = json.loads(json.dumps(plain))
    assert stored == plain
    decoded = codec.read(stored)
    assert decoded == value
    assert type(decoded) is type(value)
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
    """The base class of the one model."""


class User(Base):
    """A model."""

    __tablename__ = "user"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass
class Odd:
    """A class whose constructor takes more than an instance has."""

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
    (
        Node,
        {"day": "2026-01-01", "inner": [{"day": 1}]},
        r"it\['inner'\]\[0\]\['day'\]: expected a d",
    ),
    (Node, {}, r"\['day'\].*a date such as 2026-11-24, got nothing"),
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
        at("it", codec.encode, value)
    assert re.search(says, caught.value.message(()))


@pytest.mark.parametrize("hint", [Any, object, Any | None, Annotated[Any, 1]])
def test_annotation_that_says_nothing_leaves_values_as_they_are(hint: Any) -> None:
    assert codec_of(hint) is ANY


@pytest.mark.parametrize("hint", [User, User | date, Plain, list[Plain]])
def test_value_of_a_type_that_nobody_knows_is_refused_with_a_sentence(hint: Any) -> None:
    with pytest.raises(Misfit) as caught:
        codec_of(hint).encode([1])
    assert "cannot be stored. Annotate with a type that the documentation" in caught.value.expected


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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (date | datetime, datetime | date),
        (tuple[date | datetime, ...], tuple[datetime | date, ...]),
    ],
)
def test_unions_of_the_same_types_in_another_order_are_others(one: Any, other: Any) -> None:
    """Python says that they are equal, but pydantic tries their types in order."""
    pytest.importorskip("pydantic")
    assert one == other
    day, midnight = date(2026, 11, 24), datetime(2026, 11, 24)
    values = (day, midnight) if one == date | datetime else ((day,), (midnight,))
    plain = "2026-11-24" if values[0] == day else ["2026-11-24"]
    assert (codec_of(one).read(plain), codec_of(other).read(plain)) == values


def test_without_pydantic_the_message_says_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    _of_class.cache_clear()
    with pytest.raises(Misfit) as caught:
        codec_of(Literal["a", "b"]).encode("a")
    _of_class.cache_clear()
    assert "or install pydantic if it knows the type" in caught.value.expected


def test_model_of_pydantic_is_stored_by_its_own_means() -> None:
    pydantic: Any = pytest.importorskip("pydantic")
    Order = pydantic.create_model("Order", day=(date, ...), to=(str, pydantic.Field(alias="For")))
    Login = pydantic.create_model("Login", word=(pydantic.SecretStr, ...))
    codec, order = codec_of(Order), Order(day="2026-11-24", For="a")
    assert codec.encode(order) == {"day": "2026-11-24", "For": "a"}
    assert codec.read(codec.encode(order)) == order
    assert codec.encode({"day": "2026-11-24", "For": "a"}) == codec.encode(order)
    with pytest.raises(Misfit) as caught:
        codec.encode({"day": "hunter2"})
    assert "(day: Input should be a valid date or datetime; For: Field" in caught.value.message(())
    with pytest.raises(Misfit) as caught:
        codec_of(_DICT[str, Order]).encode({"a": {"For": "b"}})
    assert "a: expected Order (a['day']: Field required)" in caught.value.message(())
    with pytest.raises(Misfit) as caught:
        codec_of(Login).encode(Login(word="hunter2"))
    assert caught.value.expected == "a value of Login that JSON stores completely"


def test_no_message_of_a_class_or_a_validator_tells_a_value() -> None:
    pydantic: Any = pytest.importorskip("pydantic")

    def refuse(value: str) -> str:
        raise ValueError(f"{value} is blocked")

    checked = Annotated[str, pydantic.AfterValidator(refuse)]
    Checked = pydantic.create_model("Checked", number=(checked, ...))
    for hint, value in ((Card, {"number": "hunter2"}), (Checked, {"number": "hunter2"})):
        for convert in (codec_of(hint).encode, codec_of(hint).read):
            with pytest.raises(Misfit) as caught:
                convert(value)
            assert "hunter2" not in caught.value.message(())


def _twins(levels: int) -> Any:
    """Return nested unions of two, each with such a union in both members."""
    below: Any = int
    for _ in range(levels):
        below = make_dataclass("A", [("below", below)]) | make_dataclass("B", [("below", below)])
    return below


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Left, {"below": {"below": None}}),
        (Left | int, {"below": None}),
        (list[Right_ | None], [{"below": {"below": None}}]),
        (Above, {"below": []}),
        (Metadata, {"metadata": []}),
        (_twins(8), {}),
    ],
)
def test_a_union_of_types_that_contain_unions_is_refused(hint: Any, value: Any) -> None:
    pytest.importorskip("pydantic")
    with pytest.raises(Misfit) as caught:
        codec_of(hint).encode(value)
    assert "discriminator" in caught.value.message(())


def test_unions_with_distinguishable_members_are_accepted() -> None:
    pydantic: Any = pytest.importorskip("pydantic")
    Cat = pydantic.create_model("Cat", kind=(Literal["cat"], "cat"), below=("Pet | None", None))
    Dog = pydantic.create_model("Dog", kind=(Literal["dog"], "dog"), below=("Pet | None", None))
    Pet = _ANNOTATED[Cat | Dog, pydantic.Field(discriminator="kind")]
    for kind in (Cat, Dog):
        kind.model_rebuild(_types_namespace={"Pet": Pet})
    pet = {"kind": "cat", "below": {"kind": "dog", "below": None}}
    for hint, value in (
        (Pet, pet),
        (_twins(2), {"below": {"below": 1}}),
        (list[Node | date], ["2026-01-01", {"day": "2026-01-01"}]),
    ):
        codec_of(hint).encode(value)


@dataclass(frozen=True)
class Leaf:
    """A class that counts its instances."""

    made: ClassVar[int] = 0
    number: int

    def __post_init__(self) -> None:
        Leaf.made += 1


def _pydantic_model(below: Any) -> Any:
    return pytest.importorskip("pydantic").create_model("Model", below=(below, ...))


def _typed_dict(name: str, fields: dict[str, Any]) -> Any:
    # Before Python 3.12, pydantic accepts no other.
    return pytest.importorskip("typing_extensions").TypedDict(name, fields)


#: Types that contain another one, with a value of each.
AROUND: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (lambda below: _LIST[below], lambda below: [below]),
    "dict": (lambda below: _DICT[str, below], lambda below: {"a": below}),
    "dataclass": (
        lambda below: make_dataclass("Data", [("below", below)]),
        lambda below: {"below": below},
    ),
    "optional": (lambda below: _LIST[below | None], lambda below: [below]),
    "TypedDict": (
        lambda below: _typed_dict("Typed", {"below": below}),
        lambda below: {"below": below},
    ),
    "pydantic": (_pydantic_model, lambda below: {"below": below}),
    "union": (lambda below: _LIST[below | int], lambda below: [below]),
    "tuple": (lambda below: _TUPLE[below, int], lambda below: [below, 1]),
}


@pytest.mark.parametrize("kinds", [*((kind,) for kind in AROUND), (*AROUND,)], ids="-".join)
def test_a_value_is_converted_as_often_however_deep_it_is_inside(kinds: tuple[str, ...]) -> None:
    pytest.importorskip("pydantic")
    counts: list[int] = []
    for levels in (8, 16):
        hint, value = Leaf, {"number": 1}
        for level in range(levels):
            hint_of, value_of = AROUND[kinds[level % len(kinds)]]
            hint, value = hint_of(hint), value_of(value)
        codec = codec_of(hint)
        Leaf.made = 0
        assert codec.encode(codec.encode(value)) == codec.encode(value)
        codec.read(value)
        counts.append(Leaf.made)
    assert 0 < counts[0] == counts[1] <= 12


@pytest.mark.parametrize(("kind", "few"), [(list[Leaf], 1), (dict[str, Leaf | int], 3), (Chain, 2)])
def test_conversions_are_as_many_as_values(kind: Any, few: int) -> None:
    pytest.importorskip("pydantic")
    counts: list[int] = []
    for number in (50, 100):
        value: Any = [{"number": 1}] * number
        if kind is Chain:
            value = None
            for _ in range(number):
                value = {"day": "2026-01-01", "below": value}
        elif kind != list[Leaf]:
            value = {str(place): item for place, item in enumerate(value)}
        Leaf.made = Chain.made = 0
        codec_of(kind).encode(value)
        counts.append(Leaf.made + Chain.made)
    assert 0 < counts[0] * 2 == counts[1] <= few * 100
