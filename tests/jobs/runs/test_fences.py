"""Every write about a held run carries its token; after the lease is lost it matches no row.

The same worker's name, the same id and the same status are no fence: each test gives the run to
another claim, which makes all three equal again, and lets the first come back.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flask_cronjobs.jobs.runs.leases import progress, renew, watch
from flask_cronjobs.types import Claim
from tests.kit import Kit
from tests.rows import ago


@pytest.fixture
def stale(kit: Kit) -> Claim:
    """A claim whose lease ran out, and whose run another claim of the same worker holds now."""
    kit.run()
    claim = kit.claim_one(token="host:1:stale")
    kit.expire(claim)
    assert kit.finish(claim, "failed", reclaimed=True)
    kit.claim_one(token="host:1:live")
    return claim


def snapshot(kit: Kit, claim: Claim) -> dict[str, object]:
    row = kit.row(claim.id)
    return {column.key: getattr(row, column.key) for column in row.__table__.columns}


@pytest.mark.parametrize(
    ("write", "refused"),
    [
        (lambda kit, stale: renew(kit.books, [stale], 3600).held, frozenset()),
        (lambda kit, stale: watch(kit.books, [stale]).held, frozenset()),
        (lambda kit, stale: progress(kit.books, stale, 0.9, "stale"), False),
        (lambda kit, stale: kit.claims.release_token(stale.token), 0),
    ],
    ids=["heartbeat", "look", "progress", "release"],
)
def test_stale_token_changes_nothing(
    kit: Kit, stale: Claim, write: Callable[[Kit, Claim], object], refused: object
) -> None:
    before = snapshot(kit, stale)
    assert write(kit, stale) == refused
    assert snapshot(kit, stale) == before


def test_live_holder_is_heard(kit: Kit, stale: Claim) -> None:
    live = Claim(stale.id, "host:1:live", "task", {}, stale.attempt + 1, 10, stale.scheduled_for)
    assert renew(kit.books, [live, stale], 600.0).held == {live.id}
    assert progress(kit.books, live, 0.5, "half")
    row = kit.row(live.id)
    assert (row.progress, row.progress_message) == (0.5, "half")
    assert row.locked_until is not None
    assert row.locked_until > ago(seconds=-500)
    assert kit.finish(live)
    assert kit.row(live.id).status == "succeeded"
