"""What is freed of the frames that an exception passed through."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

import pytest

from flask_cronjobs.db.statements import free_frames


class Burden:
    """Something that a frame holds."""


def broken(look: Callable[[], object]) -> tuple[BaseException, weakref.ref[Burden]]:
    """An exception, and what a frame held that it passed through.

    :param look: called in that frame.
    """
    seen = []

    def work() -> None:
        burden = Burden()
        seen.append(weakref.ref(burden))
        look()
        raise KeyboardInterrupt

    try:
        work()
    except KeyboardInterrupt as error:
        return error, seen[0]
    raise AssertionError


@pytest.mark.parametrize(
    "look",
    [lambda: None, lambda: sys._getframe(1).f_locals],
    ids=["alone", "its variables were read"],
)
def test_what_an_ended_frame_held_is_free(look: Callable[[], object]) -> None:
    error, burden = broken(look)
    assert burden() is not None
    free_frames(error)
    assert burden() is None


def test_what_the_frame_of_a_cause_held_is_free() -> None:
    cause, burden = broken(lambda: None)
    error = ValueError()
    error.__cause__ = cause
    free_frames(error)
    assert burden() is None


def test_frame_that_is_at_work_keeps_no_other_from_being_cleared() -> None:
    seen = []

    def work() -> None:
        burden = Burden()
        seen.append(weakref.ref(burden))
        raise KeyboardInterrupt

    try:
        work()
    except KeyboardInterrupt as error:
        free_frames(error)  # This frame is the first that the error passed through.
        assert seen[0]() is None
