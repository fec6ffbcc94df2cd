"""How values of annotated types become plain JSON, and come back. Pure."""

from __future__ import annotations

import dataclasses
import inspect
import json
import reprlib
import sys
from collections import abc
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from itertools import repeat
from operator import attrgetter
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from ..types import JSON
from .payload import advice_on

_NOTHING = object()


class Misfit(Exception):
    """A value does not fit.

    :ivar expected: what would.
    :ivar path: leads to the value, from the outermost one.
    """

    def __init__(self, expected: str, value: object, path: str = "") -> None:
        self.expected = expected
        self.path = path
        self._value = value

    def got(self, show: bool) -> str:
        """Return what was given, for a message.

        :param show: whether a short value may be shown itself.
        """
        if self._value is _NOTHING:
            return "nothing"
        if show and isinstance(self._value, (str, int, float, NoneType)):
            return reprlib.repr(self._value)
        return f"a value of type {type(self._value).__name__}"


class Codec(NamedTuple):
    """How the values of one type are stored.

    :ivar expected: what fits, for people.
    :ivar encode: returns the JSON of a value, or of its JSON; raises `Misfit`.
    :ivar decode: returns the value of its JSON; raises `Misfit`. None: the JSON is the value.
    :ivar exact: values of this very type need no look.
    :ivar choices: the JSON of all values, if they are few.
    """

    expected: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any] | None = None
    exact: type | None = None
    choices: tuple[JSON, ...] = ()

    @property
    def read(self) -> Callable[[Any], Any]:
        """What returns the value of a stored JSON, checked."""
        return self.decode or self.encode


def _itself(value: Any) -> Any:
    return value


#: For values whose type says nothing.
ANY = Codec("JSON", _itself)
#: Either returns the way that values go, of a codec.
_ENCODE, _READ = attrgetter("encode"), attrgetter("read")


def at(step: str, convert: Callable[[Any], Any], value: object) -> Any:
    """Return *value*, converted. What `payload_text` refuses is left to it.

    :param step: where the value is, in the one that has it.
    :raises Misfit: it does not fit.
    """
    if advice_on(value):
        return value
    try:
        return convert(value)
    except Misfit as misfit:
        misfit.path = step + misfit.path
        raise


def codec_of(hint: Any) -> Codec:
    """Return the codec of an annotation; `ANY` if it says nothing to us."""
    if get_origin(hint) is Annotated:
        return codec_of(hint.__origin__)
    for meant in ("__supertype__", "__value__"):  # A NewType, and a ``type`` statement.
        if not isinstance(hint, type) and hasattr(hint, meant):
            return codec_of(getattr(hint, meant))
    args: tuple[Any, ...] = get_args(hint)
    origin: Any = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return _union(map(codec_of, args))
    if origin is Literal:
        return _literal(args)
    if get_origin(hint) is tuple and args[-1] is not Ellipsis:
        return _array(tuple, [codec_of(each) for each in args])
    if origin in _ARRAYS:
        return _array(_ARRAYS[origin], item=codec_of(args[0]) if args else ANY)
    if origin in (dict, abc.Mapping, abc.MutableMapping):
        return _object(origin, *(map(codec_of, args) if args else (ANY, ANY)))
    return _LEAVES.get(origin) or (_of_class(origin) if isinstance(origin, type) else ANY)


def _union(members: Iterable[Codec]) -> Codec:
    """Return the codec of values that fit one of *members*: the first that reads its JSON."""
    # No other has the JSON null, and to ask it first is quick.
    codecs = sorted(dict.fromkeys(members), key=lambda codec: codec is not _NONE)
    if ANY in codecs:
        return ANY
    is_optional = len(codecs) == 2 and codecs[0] is _NONE
    expected = " or ".join(codec.expected for codec in codecs if codec is not _NONE)

    def fitting(way: attrgetter[Any], value: object) -> tuple[Codec, Any]:
        inner = Misfit(expected, value)
        for codec in codecs:
            try:
                return codec, at("", way(codec), value)
            except Misfit as misfit:
                inner = misfit
        raise inner if inner.path or is_optional else Misfit(expected, value)

    def encode(value: object) -> Any:
        codec, plain = fitting(_ENCODE, value)
        if codec.decode is not None and fitting(_READ, plain)[0] is not codec:
            raise Misfit(f"{expected}, of which the first that fits the JSON is taken", value)
        return plain

    def decode(value: object) -> Any:
        return fitting(_READ, value)[1]

    is_plain = all(codec.decode is None for codec in codecs)
    choices = codecs[-1].choices if is_optional else ()
    return Codec(expected, encode, None if is_plain else decode, choices=choices)


def _plain(expected: str, *kinds: type, choices: tuple[JSON, ...] = ()) -> Codec:
    def check(value: object) -> object:
        # To Python, a bool is an int.
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
    is_model: bool = False,
) -> Codec:
    """Return the codec of a class that has functions for both ways.

    :param is_model: whether an error of *load* tells what is wrong with the value, and whether not
        all that a value has may be in its JSON, such as a secret or what a subclass has.
    """

    def convert(function: Callable[[Any], Any], value: object) -> Any:
        try:
            return function(value)
        except Exception as error:
            reason = f" ({_reason(error)})" if is_model else ""
            raise Misfit(expected + reason, value) from None

    def encode(value: object) -> Any:
        found = value if isinstance(value, kind) else convert(load, value)
        plain = convert(dump, found)
        # A naive time, say, is refused here.
        if convert(load, plain) != found and is_model:
            raise Misfit(f"{expected}, and all of it in its JSON", value)
        return plain

    return Codec(expected, encode, partial(convert, load), choices=choices)


def _literal(values: tuple[Any, ...]) -> Codec:
    if not {type(each) for each in values} <= {str, int, bool, NoneType}:
        return ANY
    expected = f"one of {_listed(values)}"

    def check(value: object) -> object:
        if not any(type(value) is type(each) and value == each for each in values):
            raise Misfit(expected, value)
        return value

    return Codec(expected, check, choices=values)


@lru_cache(1024)  # By class: one may name itself in its fields.
def _of_class(kind: Any) -> Codec:
    if hasattr(kind, "__mapper__"):
        return ANY  # A row's class, perhaps also a dataclass or a model: a row is refused.
    if issubclass(kind, Enum):
        is_json = all(isinstance(each.value, (str, int, float, NoneType)) for each in kind)
        dump = attrgetter("value" if is_json else "name")
        choices = tuple(map(dump, kind))
        load = kind if is_json else kind.__getitem__
        return _leaf(kind, f"one of {_listed(choices)}", dump, load, choices)
    if hasattr(kind, "__dataclass_fields__"):
        fields = {each.name: each for each in dataclasses.fields(kind) if each.init}
        parameters = inspect.signature(kind).parameters
        # An __init__ of its own, or an InitVar, takes what an instance does not tell.
        is_plain = parameters.keys() == fields.keys()
        optional = {each.name for each in parameters.values() if each.default is not each.empty}
        return _record(kind, [*fields], optional) if is_plain else ANY
    if hasattr(kind, "__required_keys__"):  # A TypedDict.
        return _record(kind, [*kind.__annotations__], kind.__optional_keys__)
    if hasattr(kind, "_field_defaults"):  # A NamedTuple.
        return _record(kind, [*kind._fields], kind._field_defaults)
    if hasattr(kind, "model_validate_json"):  # A model of pydantic's.
        write = partial(kind.model_dump, mode="json", by_alias=True, round_trip=True)
        return _model(kind, write, kind.model_validate_json)
    if hasattr(kind, "__struct_fields__") and "msgspec" in sys.modules:
        text = sys.modules["msgspec"].json
        return _model(
            kind, lambda struct: json.loads(text.encode(struct)), text.Decoder(kind).decode
        )
    return ANY


def _model(kind: type, dump: Callable[[Any], JSON], load: Callable[[str], Any]) -> Codec:
    """Return the codec of a class that reads JSON by means of its own."""
    return _leaf(kind, kind.__name__, dump, lambda plain: load(json.dumps(plain)), is_model=True)


def _array(make: Callable[..., Any], fixed: Sequence[Codec] = (), item: Codec = ANY) -> Codec:
    is_set = make in (set, frozenset)
    kinds = (list, tuple, set, frozenset) if is_set else (list, tuple)
    expected = f"a list of {len(fixed)}" if fixed else "a list"

    def convert(way: attrgetter[Any], value: Any) -> list[Any]:
        if not issubclass(type(value), kinds) or (fixed and len(value) != len(fixed)):
            raise Misfit(expected, value)
        codecs = enumerate(zip(fixed or repeat(item), value, strict=False))
        return [at(f"[{place}]", way(codec), each) for place, (codec, each) in codecs]

    def encode(value: object) -> Any:
        plain = convert(_ENCODE, value)
        if not is_set:
            return plain
        # A set has no order, and its JSON always the same.
        return [each for _, each in sorted({repr(one): one for one in plain}.items())]

    def decode(value: object) -> Any:
        return make(convert(_READ, value))

    return Codec(expected, encode, None if make is list and item.decode is None else decode)


def _object(kind: type, key: Codec, item: Codec) -> Codec:
    names = _NUMBER if key is _LEAVES[int] else key

    def convert(way: attrgetter[Any], value: Any) -> dict[Any, Any]:
        if not issubclass(type(value), kind):
            raise Misfit("an object", value)
        return {
            at("", way(names), name): at(f"[{reprlib.repr(name)}]", way(item), each)
            for name, each in value.items()
        }

    is_plain = names.decode is None and item.decode is None
    return Codec(
        "an object", partial(convert, _ENCODE), None if is_plain else partial(convert, _READ)
    )


def _record(kind: type[Any], names: list[str], optional: abc.Container[str]) -> Codec:
    """Return the codec of a class with fields, which is stored as an object."""
    expected = f"an object with {', '.join(names)}"

    found: dict[str, Codec] = {}

    def codecs() -> dict[str, Codec]:
        if not found:
            try:
                hints = get_type_hints(kind)
            except Exception:  # They name what is not there, or not yet.
                return dict.fromkeys(names, ANY)
            found.update((name, codec_of(hints.get(name, Any))) for name in names)
        return found

    def convert(way: attrgetter[Any], value: Any) -> dict[str, Any]:
        if not issubclass(type(value), dict):
            raise Misfit(expected, value)
        for name in value.keys() - codecs().keys():
            raise Misfit(f"one of the fields {', '.join(names)}", name)
        for name, codec in codecs().items():
            if name not in value and name not in optional:
                raise Misfit(codec.expected, _NOTHING, f".{name}")
        return {name: at(f".{name}", way(codecs()[name]), each) for name, each in value.items()}

    def decode(value: object) -> Any:
        fields = convert(_READ, value)
        try:
            return kind(**fields)
        except Exception as error:
            raise Misfit(f"{expected} ({_reason(error)})", value) from None

    def encode(value: Any) -> Any:
        if type(value) is kind:
            return convert(_ENCODE, {name: getattr(value, name) for name in names})
        plain = convert(_ENCODE, value)
        decode(plain)
        return plain

    return Codec(expected, encode, decode)


def _reason(error: Any) -> str:
    """Return what is wrong; of pydantic's errors, without the values that they repeat."""
    if not hasattr(error, "errors"):
        return str(error)
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:3])


def _listed(values: Iterable[object]) -> str:
    return reprlib.repr([*values])[1:-1]


def _aware(text: str) -> datetime:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not read the Z.
    if moment.utcoffset() is None:
        raise ValueError
    return moment


_NONE, _TEXT = _plain("None", NoneType), _plain("a text", str)
_FLOAT = _plain("a number", float, int)
#: For the keys of an object, which are texts.
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
        lambda text: Decimal(_TEXT.encode(text)),
    ),
    Path: _leaf(Path, "a path", str, Path),
    PurePath: _leaf(PurePath, "a path", str, PurePath),
}  # fmt: skip
_ARRAYS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    tuple: tuple,
    frozenset: frozenset,
}
