"""The values that a payload and a result may contain."""

from __future__ import annotations

import enum
import inspect
import json
import math
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from flask_sqlalchemy import SQLAlchemy
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import CombinedMultiDict, ImmutableMultiDict, MultiDict
from werkzeug.local import LocalProxy

from flask_cronjobs import CronJobs, PayloadError
from flask_cronjobs.config import Settings
from flask_cronjobs.core.tasks.declared_task import DeclaredTask
from flask_cronjobs.core.tasks.options import TaskOptions
from flask_cronjobs.core.tasks.payload import MAX_DEPTH, kept_result, payload_text
from tests.marks import on_both

LIMIT = 64 * 1024
SETTINGS = Settings(max_payload_bytes=LIMIT)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


KEPT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "scalars": {"none": None, "yes": True, "int": 1, "float": -1.5e-300, "text": "é\n\U0001f600"},
    "empty text": {"": ""},
    "large integer": {"a": 2**70},
    "containers": {"list": [1, [2, {}]], "object": {"a": {"b": []}}},
    "control characters": {"a": "\x01\x7f\ufeff"},
    "deep enough": {"a": nested(MAX_DEPTH - 1)},
}

REFUSED: dict[str, tuple[dict[Any, Any], str]] = {
    "NaN": ({"user": {"score": float("nan")}}, r"payload\['user'\]\['score'\] is nan"),
    "infinity": ({"a": [1, float("inf")]}, r"payload\['a'\]\[1\] is inf"),
    "NUL": ({"name": "a\0b"}, r"payload\['name'\] holds a NUL.*Pass text\.replace"),
    "NUL in a key": ({"a\0b": 1}, "holds a NUL"),
    "lone surrogate": ({"name": "a\ud800"}, r"payload\['name'\] holds a lone surrogate"),
    "lone surrogate in a key": ({"\udfff": 1}, "lone surrogate"),
    "number as a key": ({"a": {1: 2}}, r"payload\['a'\] has a key of type int\..*in quotes"),
    "time": ({"when": datetime(2026, 1, 1)}, r"payload\['when'\] is of type datetime.*isoformat"),
    "set": ({"a": {"b": {1}}}, r"payload\['a'\]\['b'\] is of type set"),
    "object": ({"user": object()}, r"payload\['user'\] is of type object"),
    "20,000 levels": ({"a": nested(20_000)}, "nested over 100 levels deep"),
    "too large": ({"small": 1, "body": "x" * LIMIT}, "is larger than 65,536 bytes, the limit"),
    "too large in bytes": ({"body": "é" * (LIMIT // 2 + 1)}, "the limit"),
    "endless integer": (
        {"a": 10**5000},
        "cannot be written as JSON.*Pass such a large number as text",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_plain_json_is_kept_as_it_is(case: str) -> None:
    assert json.loads(payload_text(KEPT[case], LIMIT)) == KEPT[case]


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused_by_its_key(case: str) -> None:
    payload, message = REFUSED[case]
    with pytest.raises(PayloadError, match=message):
        payload_text(payload, LIMIT)


@pytest.mark.parametrize("payload", [[], "text", 1, None])
def test_payload_that_is_no_object_is_refused(payload: Any) -> None:
    with pytest.raises(PayloadError, match="Give a dict of arguments"):
        payload_text(payload, LIMIT)


def test_payload_of_exactly_the_limit_is_kept() -> None:
    empty = len(json.dumps({"a": ""}))
    assert len(payload_text({"a": "x" * (100 - empty)}, 100)) == 100
    with pytest.raises(PayloadError, match="is larger than 100 bytes"):
        payload_text({"a": "x" * (101 - empty)}, 100)


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, float("nan"), "x" * LIMIT, "\0", nested(200), 10**5000], ids=type
)
def test_result_that_is_not_is_dropped_with_a_warning(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert kept_result(value, SETTINGS, "task it, run 1") is None
    assert "task it, run 1: the result is not JSON, or is too large" in caplog.text


@pytest.mark.parametrize(
    "inside", [object(), {"s3cret": "\0"}, {5551234: 1}, {b"s3cret": 1}], ids=type
)
def test_no_refusal_tells_what_is_in_a_hidden_value(
    inside: object, caplog: pytest.LogCaptureFixture
) -> None:
    value: Any = {"users": [{"ssn": {"s3cret": [inside]}}]}
    assert kept_result(value, Settings(redact=("ssn",)), "task it, run 1") is None
    with pytest.raises(PayloadError) as refusal:
        payload_text(value, LIMIT, ("ssn",))
    for message in (caplog.text, str(refusal.value)):
        assert "['users'][0]['ssn'] " in message
        assert "s3cret" not in message
        assert "5551234" not in message


def test_result_may_be_as_large_as_a_payload() -> None:
    assert kept_result("x" * (LIMIT - 2), SETTINGS, "task it, run 1") is not None
    assert kept_result("x" * (LIMIT - 1), SETTINGS, "task it, run 1") is None


#: `repr` writes floats from 1e16 with an exponent.
LARGE = [1e16, 1e22, -1e22, 1e23, 123456789012345680000.0, 1e308]
SMALL = [1e15, 9999999999999998.0, 1.5, 1e-7, 1e-300, 0.0]


@on_both
def test_number_is_of_the_same_type_on_both_databases(
    context: None, jobs: CronJobs, db: SQLAlchemy
) -> None:
    """PostgreSQL stores the digits of a number, but not whether it had an exponent."""
    payloads: list[object] = []
    numbers = [*LARGE, *SMALL]
    expected = [repr(int(Decimal(repr(n)))) for n in LARGE] + [repr(n) for n in SMALL]

    @jobs.task
    def handler(x: list[float], inner: dict[str, Any]) -> list[object]:
        payloads.extend([*x, *inner["e+"]])
        return payloads

    run = handler.using(commit=True).enqueue(numbers, {"e+": numbers})
    jobs.tick()
    assert [repr(number) for number in payloads] == expected * 2
    db.session.refresh(run)
    result: Any = run.result
    assert [repr(number) for number in result] == expected * 2
    stored: Any = run.payload["x"]
    assert [repr(number) for number in stored] == expected


FORM: MultiDict[str, str] = MultiDict([("a", "1"), ("a", "2")])


@pytest.fixture
def _takes_typed_values_and_others(jobs: CronJobs, context: None) -> None:
    @jobs.task
    def it(
        day: date | None = None,
        days: list[date] = [],  # noqa: B006
        form: dict[str, str] | None = None,
        **values: Any,
    ) -> None: ...


@pytest.mark.usefixtures("_takes_typed_values_and_others")
@pytest.mark.parametrize("form", [FORM, ImmutableMultiDict(FORM), CombinedMultiDict([FORM])])
def test_form_is_refused_since_only_first_values_would_be_kept(jobs: CronJobs, form: Any) -> None:
    for payload in (form, {"form": form}, {"other": form}, {"forms": [{"form": form}]}):
        with pytest.raises(PayloadError, match=r"of type \w*MultiDict.*\.to_dict\(\)"):
            jobs.enqueue("it", payload)
    jobs.enqueue("it", {"form": form.to_dict(), "all": form.to_dict(flat=False)})


@pytest.mark.usefixtures("_takes_typed_values_and_others")
@pytest.mark.parametrize("value", [date(2026, 1, 1), 1, {"a": 1}, [1], None, object()])
def test_proxy_is_refused_with_advice(jobs: CronJobs, value: object) -> None:
    proxy: LocalProxy[object] = LocalProxy(lambda: value)
    for payload in ({"user": proxy}, {"users": [proxy]}, {"day": proxy}, {"days": [proxy]}):
        with pytest.raises(PayloadError, match=r"LocalProxy.*current_user\.id"):
            jobs.enqueue("it", payload)


#: FAULTS: a payload of megabytes, or with long keys, is refused in time linear in its size.
class Counted(list[Any]):
    """A list that counts how many of its members are read."""

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        for member in super().__iter__():
            self.seen += 1
            yield member


@pytest.mark.parametrize("member", [0, "x", [], {"a": 1}, None], ids=repr)
@pytest.mark.parametrize("inside", [False, True])
def test_members_beyond_the_limit_are_not_read(member: Any, inside: bool) -> None:
    many = Counted([member] * 300_000)
    payload = {"first": 1, "many": {"deep": [many]} if inside else many}
    with pytest.raises(PayloadError, match="larger than 65,536 bytes, the limit"):
        payload_text(payload, LIMIT)
    assert many.seen <= LIMIT


@pytest.mark.parametrize(
    "payload",
    [
        {"k" * 1_000_000: 1},
        {"k" * 1_000_000: object()},
        {"k" * 1_000_000 + "\0": 1},
        {"a": {"k" * 50_000: {"l" * 10_000: {b"m" * 1_000_000: 1}}}},
        {"a": {("n" * 1_000_000,): 1}},
        {10**4000: 1},
        {"a": {10**5000: 1}},
    ],
    ids=["large", "an object", "NUL", "bytes", "tuple", "number", "endless number"],
)
def test_refusal_of_long_keys_stays_short(payload: Any) -> None:
    with pytest.raises(PayloadError) as refusal:
        payload_text(payload, LIMIT)
    assert len(str(refusal.value)) < 700


# The fast encoder gives the same JSON text as the thorough one, and refuses the same values


FEW_BYTES = 200


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
        return text(payload, FEW_BYTES)
    except PayloadError:
        return PayloadError


@given(payload=payloads)
def test_both_ways_agree(payload: dict[Any, object]) -> None:
    assert outcome(payload_text, payload) == outcome(payload_text, MappingProxyType(payload))


@pytest.mark.parametrize("value", ODD, ids=lambda value: ascii(type(value)))
def test_odd_values_agree(value: Any) -> None:
    test_both_ways_agree.hypothesis.inner_test({"a": value})  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [FEW_BYTES - 10, FEW_BYTES - 9, FEW_BYTES - 8, FEW_BYTES])
def test_limit_is_the_same_to_the_byte(size: int) -> None:
    test_both_ways_agree.hypothesis.inner_test({"a": "x" * size})  # type: ignore[attr-defined]
    test_both_ways_agree.hypothesis.inner_test({"a": "é" * (size // 2)})  # type: ignore[attr-defined]


@given(payload=st.dictionaries(st.sampled_from(["user_id", "week", "self", "more", "é"]), values))
def test_names_alone_distinguish_right_arguments_from_wrong_ones(
    payload: dict[Any, object],
) -> None:
    """The check of names agrees with the signature, even for handlers with any arguments."""
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


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, 2), {}),
        ((1,), {"b": 2}),
        ((), {"b": 2, "a": 1}),
        ((1, 2), {"c": 3}),
        ((1, 2, 3), {}),
        ((1, 2), {"b": 2}),
        ((1,), {}),
        ((1, 2), {"d": 4}),
    ],
)
def test_call_of_any_form_is_bound_as_python_binds_it(
    args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    def it(a: int, b: int, *, c: int = 0) -> None: ...

    task = DeclaredTask(it, "it", TaskOptions())
    try:
        bound = inspect.signature(it).bind(*args, **kwargs).arguments
    except TypeError:
        with pytest.raises(TypeError):
            task.payload(*args, **kwargs)
    else:
        assert task.payload(*args, **kwargs) == bound
