"""The fast way to a payload's JSON text gives what the thorough one gives, and refuses the same."""

from __future__ import annotations

import enum
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_cronjobs import CronJobs, PayloadError
from flask_cronjobs.registry.payload import checked_text, payload_text

LIMIT = 200


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    """A text that json writes like any other."""


ODD: list[Any] = [
    *("", "a\0b", "\ud800", "\udfff", "é", "😀", "\\u0000", "\\ud800", "\x7f\u2028\n", "x" * 190),
    *(0, -1, 2**63, -(2**63), 2**64, 10**150, 10**5000, True, False, None, Number.ONE, Text("t")),
    *(0.5, -0.0, 1e22, math.inf, -math.inf, math.nan),
    *([], [1, "\0"], (1, 2), {}, {"a": {1: 2}}, {"a": float("nan")}, {1, 2}, b"x", object()),
]
values = st.one_of(
    st.sampled_from(ODD), st.text(), st.integers(), st.floats(), st.lists(st.integers(), max_size=3)
)
payloads = st.dictionaries(
    st.one_of(st.sampled_from(["user_id", "a\0", "\ud800", Text("k"), 1, None]), st.text()),
    values,
    max_size=4,
)


def outcome(text: Any, payload: Any) -> object:
    try:
        return text(payload, LIMIT)
    except PayloadError as error:
        return str(error)


@given(payload=payloads)
def test_both_ways_agree(payload: dict[Any, object]) -> None:
    def thorough(given: Any, limit: int) -> str:
        return checked_text(given, limit)

    assert outcome(payload_text, payload) == outcome(thorough, payload)


@pytest.mark.parametrize("value", ODD, ids=lambda value: ascii(type(value)))
def test_odd_values_agree(value: Any) -> None:
    test_both_ways_agree.hypothesis.inner_test({"a": value})  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [LIMIT - 10, LIMIT - 9, LIMIT - 8, LIMIT])
def test_limit_is_the_same_to_the_byte(size: int) -> None:
    test_both_ways_agree.hypothesis.inner_test({"a": "x" * size})  # type: ignore[attr-defined]
    test_both_ways_agree.hypothesis.inner_test({"a": "é" * (size // 2)})  # type: ignore[attr-defined]


@given(payload=st.dictionaries(st.sampled_from(["user_id", "week", "self", "more", "é"]), values))
def test_names_alone_tell_right_arguments_from_wrong_ones(payload: dict[Any, object]) -> None:
    """As the signature does, also where the handler takes any, and where it takes none."""
    jobs = CronJobs()

    def some(user_id: int, *, week: str = "now") -> None: ...
    def none() -> None: ...
    def any_of(user_id: int = 0, **more: object) -> None: ...

    for handler in (some, none, any_of):
        task: Any = jobs.task(handler)
        for arguments in (payload, {**payload, "user_id": 1}, {"user_id": 1, "week": 2}, {}):
            try:
                task._signature.bind(**arguments)
            except TypeError:
                with pytest.raises(TypeError):
                    task.payload_from(arguments)
            else:
                assert task.payload_from(arguments) == arguments
