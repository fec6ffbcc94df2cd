"""Convert values of annotated types to plain JSON and back. Pure.

Each value is converted once, so that a conversion takes time linear in the size of the payload.
"""

from __future__ import annotations

import dataclasses
import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from operator import attrgetter, eq
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from ...core.tasks.payload import refusal
from ...text.redaction import shown_path
from ...types import JSON

_NOTHING = object()
#: The maximum number of tries of a value by nested unions, and the depth to which they are counted.
_MOST_TRIES, _LEVELS = 100, 80


class Misfit(Exception):
    """A value does not fit.

    :ivar expected: the description of a value that would fit.
    :ivar path: the keys that lead from the outermost value to this one.
    :ivar details: the problems inside, each with the keys that lead there from this value.
    """

    def __init__(self, expected: str, value: object, *path: object) -> None:
        self.expected = expected
        self.path = path
        self.details: Sequence[tuple[Iterable[object], str]] = ()
        self._value = value

    def message(self, hidden: Sequence[str]) -> str:
        """Return the message. It never contains a value, which may have to be hidden.

        :param hidden: parts of the names of hidden values; see `redacted`. The keys inside such a
            value are not shown, either.
        """
        inside = (
            f"{shown_path((*self.path, *keys), hidden)}: {problem}"
            for keys, problem in self.details
        )
        expected = f"{self.expected} ({'; '.join(inside)})" if self.details else self.expected
        has_value = self._value is not _NOTHING
        actual = f"a value of type {type(self._value).__name__}" if has_value else "nothing"
        return f"{shown_path(self.path, hidden)}: expected {expected}, got {actual}."


class Unstorable(Misfit):
    """The annotation names a type whose values cannot be stored.

    :ivar expected: why, and what to do.
    """

    def message(self, hidden: Sequence[str]) -> str:
        """Return the message. It does not describe the value, since no value would fit."""
        return f"{shown_path(self.path, hidden)}: {self.expected}."


class Codec(NamedTuple):
    """How the values of one type are stored.

    :ivar expected: describes the values that fit, for people.
    :ivar encode: returns the JSON of a value, which may be JSON already; raises `Misfit`.
    :ivar decode: returns the value for its JSON; raises `Misfit`. None if the JSON is the value.
    :ivar exact: values of exactly this type need no check.
    :ivar choices: the JSON of all values, if they are few.
    """

    expected: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any] | None = None
    exact: type | None = None
    choices: tuple[JSON, ...] = ()

    @property
    def read(self) -> Callable[[Any], Any]:
        """The function that checks a stored JSON value and converts it."""
        return self.decode or self.encode


def _itself(value: Any) -> Any:
    return value


#: The codec of values without a usable annotation.
ANY = Codec("JSON", _itself)


def at(key: object, convert: Callable[[Any], Any], value: object) -> Any:
    """Return *value* converted; unchanged if `payload_text` refuses it with better advice.

    :param key: the key of the value in its container.
    :raises Misfit: the value does not fit.
    """
    if refusal(value):
        return value
    try:
        return convert(value)
    except Misfit as misfit:
        misfit.path = (key, *misfit.path)
        raise


def codec_of(hint: Any) -> Codec:
    """Return the codec of an annotation; `ANY` if the annotation says nothing about its values."""
    if get_origin(hint) is Annotated:
        return codec_of(hint.__origin__)
    for name in ("__supertype__", "__value__"):  # A NewType, and a ``type`` statement.
        if not isinstance(hint, type) and hasattr(hint, name):
            return codec_of(getattr(hint, name))
    args: tuple[Any, ...] = get_args(hint)
    origin: Any = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return _optional(hint, [arg for arg in args if arg is not NoneType])
    if origin is list:
        return _list(codec_of(args[0]) if args else ANY)
    if origin is dict:
        return _dict(*(map(codec_of, args) if args else (ANY, ANY)))
    return ANY if hint in (Any, object) else _LEAVES.get(origin) or _of_class(hint, repr(hint))


def _optional(hint: Any, args: list[Any]) -> Codec:
    """Return the codec of ``X | None``; pydantic knows the other unions."""
    if len(args) != 1 or NoneType not in get_args(hint):
        return _of_class(hint, repr(hint))
    codec = codec_of(args[0])
    if codec is ANY:
        return ANY
    read = codec.decode and partial(_unless_none, codec.read)
    return codec._replace(encode=partial(_unless_none, codec.encode), decode=read)


def _unless_none(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _plain(expected: str, *kinds: type, choices: tuple[JSON, ...] = ()) -> Codec:
    def check(value: object) -> object:
        # A bool is an int in Python.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise Misfit(expected, value)
        return value

    return Codec(expected, check, exact=kinds[0], choices=choices)


def _leaf(
    kind: type,
    expected: str,
    dump: Callable[[Any], JSON],
    load: Callable[[Any], Any],
    choices: tuple[JSON, ...] = (),
) -> Codec:
    """Return the codec of a class that has a function for each direction."""

    def convert(function: Callable[[Any], Any], value: object) -> Any:
        try:
            return function(value)
        except Exception:
            raise Misfit(expected, value) from None

    def encode(value: object) -> Any:
        plain = convert(dump, value if isinstance(value, kind) else convert(load, value))
        convert(load, plain)  # A naive time, for instance, is refused here.
        return plain

    return Codec(expected, encode, partial(convert, load), choices=choices)


@lru_cache(1024)  # A class may name itself in its fields.
def _of_class(hint: Any, _: str) -> Codec:
    """Return the codec of a type that is not a container of plain JSON.

    :param _: the type as a text, for the cache: unions are equal whatever the order of their
        members, but the order decides how some values are read.
    """
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint)
    if hasattr(cast("Any", hint), "__mapper__"):
        return _unknown(hint.__name__)  # A row is refused, even if its class is a dataclass.
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        fields = [field.name for field in dataclasses.fields(hint) if field.init]
        parameters = inspect.signature(hint).parameters
        # A custom __init__, or an InitVar, takes more than the fields of an instance.
        if list(parameters) == fields:
            optional = {
                parameter.name
                for parameter in parameters.values()
                if parameter.default is not parameter.empty
            }
            return _dataclass(hint, fields, optional)
    return _by_pydantic(hint)


def _enum(kind: type[Enum]) -> Codec:
    is_json = all(isinstance(member.value, (str, int, float, NoneType)) for member in kind)
    dump = attrgetter("value" if is_json else "name")
    choices = tuple(map(dump, kind))
    load = kind if is_json else kind.__getitem__
    return _leaf(kind, f"one of {_listed(choices)}", dump, load, choices)


def _list(item: Codec) -> Codec:
    def convert(way: Callable[[Any], Any], value: Any) -> list[Any]:
        if not issubclass(type(value), (list, tuple)):
            raise Misfit("a list", value)
        return [at(place, way, member) for place, member in enumerate(value)]

    decode = partial(convert, item.read) if item.decode else None
    return Codec("a list", partial(convert, item.encode), decode)


def _dict(key: Codec, item: Codec) -> Codec:
    key = _NUMBER if key is _LEAVES[int] else key

    def convert(names: Callable[[Any], Any], way: Callable[[Any], Any], value: Any) -> Any:
        if not issubclass(type(value), dict):
            raise Misfit("an object", value)
        try:
            return {names(name): at(name, way, member) for name, member in value.items()}
        except TypeError:  # It cannot be hashed.
            raise Misfit(f"hashable keys, each {key.expected}", value) from None

    decode = partial(convert, key.read, item.read) if key.decode or item.decode else None
    return Codec("an object", partial(convert, key.encode, item.encode), decode)


def _dataclass(kind: Any, names: list[str], optional: set[str]) -> Codec:
    """Return the codec of a dataclass, which is stored as an object with all its fields."""
    expected = f"an object with {', '.join(names)}"

    @lru_cache(1)
    def codecs() -> dict[str, Codec]:
        hints = get_type_hints(kind)
        return {name: codec_of(hints[name]) for name in names}

    def codecs_or_any() -> dict[str, Codec]:
        try:
            return codecs()
        except NameError:  # An annotation names a type that does not exist, or not yet.
            return dict.fromkeys(names, ANY)

    def decode(value: Any) -> Any:
        if not issubclass(type(value), dict):
            raise Misfit(expected, value)
        fields = codecs_or_any()
        for name in value.keys() - fields.keys():
            raise Misfit(f"one of the fields {', '.join(names)}", name, name)
        for name, codec in fields.items():
            if name not in value and name not in optional:
                raise Misfit(codec.expected, _NOTHING, name)
        arguments = {name: at(name, fields[name].read, member) for name, member in value.items()}
        try:
            return kind(**arguments)
        except Exception as error:
            raise Misfit(f"{expected} ({type(error).__name__})", value) from None

    def encode(value: Any) -> Any:
        instance = value if type(value) is kind else decode(value)
        return {
            name: at(name, codec.encode, getattr(instance, name))
            for name, codec in codecs_or_any().items()
        }

    return Codec(expected, encode, decode)


def _by_pydantic(hint: Any) -> Codec:
    """Return the codec of a type that pydantic knows; otherwise, one that refuses all values."""
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    try:
        from pydantic import TypeAdapter

        adapter = TypeAdapter(hint)
    except Exception:  # The app has no pydantic, or pydantic does not know the type.
        return _unknown(name)
    if _tries_too_often(adapter.core_schema):
        return _refusing(
            name,
            f"the type {name} cannot be stored, since it has unions whose members contain "
            "unions, which take too long to convert. Tell their members apart with pydantic's "
            "Field(discriminator=…), or annotate with Any for plain JSON",
        )

    def convert(function: Callable[[Any], Any], value: object) -> Any:
        try:
            return function(value)
        except Exception as error:
            misfit = Misfit(name, value)
            misfit.details = _details(error)
            raise misfit from None

    def encode(value: object) -> Any:
        instance = decode(value)
        plain = convert(dump, instance)
        # Otherwise a secret, for instance, or a field of a subclass would be lost.
        if not convert(partial(eq, instance), decode(plain)):
            raise Misfit(f"a value of {name} that JSON stores completely", value)
        return plain

    dump = partial(adapter.dump_python, mode="json", by_alias=True, round_trip=True)
    decode = partial(convert, adapter.validate_python)
    return Codec(name, encode, decode)


def _unknown(name: str) -> Codec:
    why = (
        f"the type {name} cannot be stored. Annotate with a type that the documentation of "
        "arguments lists, or with Any for plain JSON, or install pydantic if it knows the type"
    )
    return _refusing(name, why)


def _refusing(name: str, why: str) -> Codec:
    def refuse(value: object) -> Any:
        raise Unstorable(why, value)

    return Codec(name, refuse, refuse)


def _tries_too_often(schema: Any) -> bool:
    """Return whether unions in pydantic's *schema* may try a value over `_MOST_TRIES` times.

    Each member of a union is tried for each value. If members contain unions too, this happens on
    each level: two members that contain their own union are tried 2**depth times.
    """
    parts = _parts(schema, {})
    defined = {part["ref"]: part for part in parts if isinstance(part.get("ref"), str)}
    inside = {id(part): (part, _members(part, defined)) for part in _parts(schema, defined)}
    tries = dict.fromkeys(inside, 0)
    for _ in range(_LEVELS):
        before, tries = tries, dict[int, int]()
        for key, (part, members) in inside.items():
            member_tries = [before[id(member)] for member in members]
            tries[key] = (
                sum(member_tries)
                if part.get("type") == "union"
                else max([bool(member_tries), *member_tries])
            )
        if tries == before or max(tries.values()) > _MOST_TRIES:
            break
    return max(tries.values()) > _MOST_TRIES


def _parts(schema: Any, defined: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return *schema*, and all that it contains."""
    parts_by_id, remaining = dict[int, dict[str, Any]](), [schema]
    while remaining:
        part = remaining.pop()
        if id(part) not in parts_by_id:
            parts_by_id[id(part)] = part
            remaining += _members(part, defined)
    return [*parts_by_id.values()]


def _members(part: dict[str, Any], defined: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas directly inside *part*; for a reference, the schema that it names."""
    members: list[dict[str, Any]] = []
    is_union = part.get("type") == "union"
    remaining: list[Any] = [part["choices"]] if is_union else [*part.values()]
    if isinstance(name := part.get("schema_ref"), str):
        remaining.append(defined.get(name))
    while remaining:
        item = remaining.pop()
        if isinstance(item, dict):
            members.append(cast("dict[str, Any]", item))
        elif isinstance(item, (list, tuple)):
            remaining += cast("Sequence[Any]", item)
    return members


def _details(error: Any) -> list[tuple[Iterable[object], str]]:
    """Return the problems and their places, without the values that pydantic's errors repeat."""
    if not hasattr(error, "errors"):
        return [((), type(error).__name__)]
    details = error.errors(include_url=False, include_input=False)
    return [(detail["loc"], _problem(detail)) for detail in details[:3]]


def _problem(detail: Any) -> str:
    """Return the message of a pydantic error, without text from a validator or a value."""
    from pydantic_core.core_schema import ErrorType

    is_known = detail["type"] in get_args(ErrorType)
    if not is_known or detail["type"] in ("union_tag_invalid", "timezone_offset"):
        return str(detail["type"])
    inner = detail.get("ctx", {}).get("error", detail.get("ctx", {}).get("encoding_error", ""))
    return str(detail["msg"]).removesuffix(str(inner)).rstrip(" ,:")


def _listed(values: Iterable[object]) -> str:
    return reprlib.repr([*values])[1:-1]


def _number(value: Decimal) -> Decimal:
    if value.is_nan():  # It equals nothing; sNaN can be neither compared nor hashed.
        raise ValueError
    return value


def _aware(text: str) -> datetime:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not read the Z.
    if moment.utcoffset() is None:
        raise ValueError
    return moment


_NONE, _TEXT = _plain("None", NoneType), _plain("a string", str)
_FLOAT = _plain("a number", float, int)
#: The codec of numbers that are keys of an object, and therefore texts.
_NUMBER = _leaf(int, "a whole number", str, lambda text: int(text.strip()))
_MOMENT = "a time with a time zone, such as datetime.now(timezone.utc) or 2026-11-24T09:00:00+00:00"
_LEAVES: dict[Any, Codec] = {
    int: _plain("a whole number", int),
    float: _FLOAT,
    str: _TEXT,
    bool: _plain("true or false", bool, choices=(True, False)),
    None: _NONE,
    NoneType: _NONE,
    date: _leaf(date, "a date such as 2026-11-24", lambda day: day.isoformat(), date.fromisoformat),
    datetime: _leaf(datetime, _MOMENT, datetime.isoformat, _aware),
    time: _leaf(time, "a time such as 09:30", time.isoformat, time.fromisoformat),
    timedelta: _leaf(
        timedelta,
        "a number of seconds",
        timedelta.total_seconds,
        lambda seconds: timedelta(seconds=_FLOAT.encode(seconds)),
    ),
    UUID: _leaf(UUID, "a UUID", str, UUID),
    Decimal: _leaf(
        Decimal, "a decimal number as text, such as '12.50'", str,
        lambda text: _number(Decimal(_TEXT.encode(text))),
    ),
}  # fmt: skip
