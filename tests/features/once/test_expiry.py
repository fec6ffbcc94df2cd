"""The records of effects are deleted long after the effect, and never while a retry needs them."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs.config import Settings
from flask_cronjobs.core.prune import prune
from flask_cronjobs.types import STATUSES, TERMINAL
from tests.kit import Kit
from tests.rows import ago


def prune_all(kit: Kit) -> None:
    for _ in prune(kit.books, Settings()):
        pass


def test_effects_go_when_done_long_ago_and_never_while_open(kit: Kit) -> None:
    kit.old_effect("old", created_at=ago(days=200))
    kit.old_effect("new", created_at=ago(days=200), done_at=ago())
    kit.old_effect("open", created_at=ago(days=200), done_at=None, state="begun")
    prune_all(kit)
    rows = kit.sql("SELECT key FROM job_effects ORDER BY key")
    assert [row.key for row in rows] == ["new", "open"]


@pytest.mark.parametrize("status", STATUSES)
def test_effects_of_a_run_that_may_be_tried_again_stay_however_old(kit: Kit, status: str) -> None:
    values: dict[str, Any] = {"finished_at": ago()} if status in TERMINAL else {}
    if status == "running":
        values = {"locked_by": "host:1:x", "locked_until": ago(-60)}
    run = kit.run(status=status, attempts=1, **values)
    kit.old_effect("of a run", run_id=run)
    prune_all(kit)
    assert bool(kit.sql("SELECT key FROM job_effects")) == (status not in ("succeeded", "skipped"))
