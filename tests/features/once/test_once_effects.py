"""The marks of effects: who may perform one, and which result it has."""

from __future__ import annotations

from functools import partial

from flask_cronjobs.features.once.once_effects import EffectMark
from tests.kit import Kit, in_threads


def begin(kit: Kit, owner: str, key: str = "key", lease: float = 60.0) -> EffectMark:
    return kit.effects.begin(key, owner, None, lease)


def test_doubt_is_shown_to_the_operator_once(kit: Kit) -> None:
    begin(kit, "one")
    assert kit.effects.doubt("key", "one")
    assert not kit.effects.doubt("key", "one")
    assert kit.sql("SELECT state FROM job_effects")[0].state == "in_doubt"
    assert begin(kit, "two").state == "in_doubt"


def test_done_effect_is_neither_doubted_nor_taken_over_nor_removed(kit: Kit) -> None:
    begin(kit, "one")
    kit.effects.done("key", "one", "result")
    assert not kit.effects.doubt("key", "one")
    assert not kit.effects.take_over("key", "one", "two", None, 60)
    kit.effects.remove("key", "one")
    assert begin(kit, "two") == EffectMark("done", "one", "result")


def test_racing_callers_of_one_key_are_one_owner(kit: Kit) -> None:
    states: list[str] = []

    def compete(number: int) -> None:
        worker = kit.another()
        with worker.books:
            states.append(begin(worker, f"owner {number}").state)

    in_threads(*(partial(compete, number) for number in range(6)))
    assert sorted(states) == ["busy"] * 5 + ["mine"]
