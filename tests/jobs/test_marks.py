"""Marks of what changed: made, listed, removed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flask_cronjobs.errors import NotFound
from flask_cronjobs.jobs.marks import add_mark, latest_marks, list_marks, remove_mark
from flask_cronjobs.jobs.state import State
from tests.rows import ago


def test_latest_marks_come_newest_first(state: State) -> None:
    old = add_mark(state, "v811", ago(days=2), "alice")
    new = add_mark(state, "v812\nx" + "y" * 200)
    assert abs(new.at - ago()) < timedelta(minutes=1)
    assert new.name == "v812 x" + "y" * 94
    assert latest_marks(state) == (new, old)
    assert latest_marks(state, since=ago(days=1)) == latest_marks(state, 1) == (new,)
    assert list(list_marks(state, 1, list_marks(state, 1).next).rows) == [old]

    assert remove_mark(state, old.id) == "v811"
    assert latest_marks(state) == (new,)
    with pytest.raises(NotFound):
        remove_mark(state, old.id)
