"""Texts from outside, made safe to keep."""

from __future__ import annotations

import builtins
import sys
import time

import pytest

from flask_cronjobs.text import clean, cut
from flask_cronjobs.text.redaction import (
    MAX_ERROR,
    MAX_STACK,
    error_text,
    safe_text,
    stack_text,
    type_name,
)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain", "plain"),
        ("é\U0001f600", "é\U0001f600"),
        ("a\0b", "a\ufffdb"),
        ("a\ud800b\udfffc", "a\ufffdb\ufffdc"),
        ("", ""),
        (None, None),
    ],
)
def test_what_no_database_takes_is_replaced(text: str | None, kept: str | None) -> None:
    assert clean(text) == kept


def test_only_long_text_is_cut_and_keeps_head_and_tail_and_says_what_is_missing() -> None:
    assert cut("x" * 100, 100) == "x" * 100
    kept = cut("H" * 500 + "m" * 9000 + "T" * 500, 1000)
    assert kept.startswith("H" * 500)
    assert kept.endswith("T" * 500)
    assert "9000 characters left out" in kept
    assert len(kept) < 1100


def test_fifty_megabytes_are_cut_in_no_time() -> None:
    started = time.monotonic()
    kept = safe_text("password=s3cret " * 3_300_000, MAX_ERROR)
    assert time.monotonic() - started < 5
    assert len(kept) < MAX_ERROR + 100
    assert "s3cret" not in kept


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "trouble"),
        [(Unspeakable(), "RuntimeError"), (Exiting(), "SystemExit"), (Endless(), "RecursionError")],
    )
    def test_message_that_cannot_be_made_is_said_to_be_so(
        self, error: Exception, trouble: str
    ) -> None:
        assert error_text(error) == f"(its message could not be made: __str__ raised {trouble})"
        assert "could not be made" in stack_text(raised(error))

    def test_type_is_named_with_its_module_unless_builtin(self) -> None:
        assert type_name(KeyError()) == "KeyError"
        assert type_name(Unspeakable()) == "tests.face.test_text.Unspeakable"


class TestStacks:
    def test_stack_names_the_place_and_the_error(self) -> None:
        stack = stack_text(raised(ValueError("broken")))
        assert stack.startswith("Traceback (most recent call last):")
        assert "in raised" in stack
        assert stack.rstrip().endswith("ValueError: broken")

    def test_cause_comes_first(self) -> None:
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer") from error
        except ValueError as caught:
            stack = stack_text(caught)
        assert stack.index("KeyError: 'inner'") < stack.index("ValueError: outer")

    def test_circle_of_causes_ends(self) -> None:
        one, two = raised(ValueError("one")), raised(ValueError("two"))
        one.__cause__, two.__cause__ = two, one
        stack = stack_text(one)
        assert stack.count("Traceback") == 2

    def test_long_chain_is_bounded(self) -> None:
        error = raised(ValueError("0"))
        for number in range(1, 1000):
            following = raised(ValueError(str(number)))
            following.__cause__ = error
            error = following
        assert stack_text(error).count("Traceback") <= 8

    def test_deep_recursion_is_bounded(self) -> None:
        def dive(depth: int) -> None:
            dive(depth + 1)

        with pytest.raises(RecursionError) as caught:
            dive(0)
        stack = stack_text(caught.value)
        assert len(stack) < MAX_STACK + 100
        assert stack.count("in dive") <= 31

    def test_suppressed_context_is_left_out(self) -> None:
        error = raised(ValueError("shown"))
        error.__context__ = KeyError("hidden")
        error.__suppress_context__ = True
        assert "hidden" not in stack_text(error)

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
    def test_group_within_group_is_bounded(self) -> None:
        group: BaseException = ValueError("x" * 1000)
        make = vars(builtins)["BaseExceptionGroup"]
        for _ in range(200):
            group = make("group", [group, ValueError("y")])
        assert len(stack_text(raised(group))) < MAX_STACK + 100
