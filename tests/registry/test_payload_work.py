"""FAULTS: a payload of megabytes, or with long keys, is refused in time linear in its size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flask_cronjobs import CronJobs, PayloadError
from flask_cronjobs.registry.payload import check_payload

LIMIT = 64 * 1024


class Counted(list[Any]):
    """A list that counts how many of its members are looked at."""

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        for member in super().__iter__():
            self.seen += 1
            yield member


class Key(str):
    """A key that counts how often it is written into a path."""

    written = 0

    def __repr__(self) -> str:
        Key.written += 1
        return super().__repr__()


@pytest.mark.parametrize("member", [0, "x", [], {"a": 1}, None], ids=repr)
@pytest.mark.parametrize("inside", [False, True])
def test_what_lies_behind_the_limit_is_not_read(member: Any, inside: bool) -> None:
    many = Counted([member] * 300_000)
    payload = {"first": 1, "many": {"deep": [many]} if inside else many}
    with pytest.raises(PayloadError, match=r"over 65,536 bytes; .*largest key is 'many'"):
        check_payload(payload, LIMIT)
    assert many.seen <= 3 * LIMIT  # Once for the check, once more to name the largest key.


def test_what_holds_the_same_list_again_and_again_is_refused_as_fast() -> None:
    """Written as JSON it would have 10 to the 60th members."""
    value: Any = Counted([0] * 10)
    first = value
    for _ in range(60):
        value = [value] * 10
    with pytest.raises(PayloadError, match="over 65,536 bytes"):
        check_payload({"a": value}, LIMIT)
    assert first.seen <= 3 * LIMIT


def test_no_path_is_written_while_nothing_is_wrong() -> None:
    """A path for each member copies a long key as often as there are members."""
    Key.written = 0
    payload: dict[str, Any] = {Key("k" * 5000): [{Key("l" * 5000): list(range(1000))}]}
    assert check_payload(payload, LIMIT) == payload
    assert Key.written == 0
    payload[Key("z")] = [object()]
    with pytest.raises(PayloadError, match=r"payload\['z'\]\[0\] is of type object"):
        check_payload(payload, LIMIT)
    assert 0 < Key.written < 10


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
        check_payload(payload, LIMIT)
    assert len(str(refusal.value)) < 700


def test_refusal_of_unknown_arguments_stays_short() -> None:
    jobs = CronJobs()

    @jobs.task
    def greet(user_id: int) -> None: ...

    for first in ("k" * 1_000_000, "short"):
        payload = {first: 1, **{f"{number}{'l' * 1000}": 1 for number in range(2000)}}
        with pytest.raises(TypeError, match=r"^greet\(\) ") as refusal:
            greet.payload_from(payload)
        assert len(str(refusal.value)) < 6000
