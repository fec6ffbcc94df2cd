"""Texts from outside are made safe to store."""

from __future__ import annotations

import pytest

from flask_cronjobs.text import clean, cut
from flask_cronjobs.text.redaction import stack_text, type_name


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


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
    text = cut("H" * 500 + "m" * 9000 + "T" * 500, 1000)
    assert text.startswith("H" * 500)
    assert text.endswith("T" * 500)
    assert "9000 characters left out" in text
    assert len(text) < 1100


class TestErrors:
    def test_type_is_named_with_its_module_unless_builtin(self) -> None:
        assert type_name(KeyError()) == "KeyError"
        assert type_name(Unspeakable()) == "tests.text.test_text.Unspeakable"


class TestStacks:
    def test_cause_comes_first(self) -> None:
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer") from error
        except ValueError as caught:
            stack = stack_text(caught)
        assert stack.index("KeyError: 'inner'") < stack.index("ValueError: outer")

    def test_long_chain_is_bounded(self) -> None:
        error = raised(ValueError("0"))
        for number in range(1, 1000):
            following = raised(ValueError(str(number)))
            following.__cause__ = error
            error = following
        assert stack_text(error).count("Traceback") <= 8

    def test_suppressed_context_is_left_out(self) -> None:
        error = raised(ValueError("shown"))
        error.__context__ = KeyError("hidden")
        error.__suppress_context__ = True
        assert "hidden" not in stack_text(error)
