"""However many due runs wait for a rate, to look for the next ones costs no more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from flask_cronjobs.jobs import rates
from flask_cronjobs.registry.options import Rate
from tests.kit import Kit
from tests.plans import LONG_AGO, add, cost, run, sent_by, tables_of

pytestmark = pytest.mark.slow

HUNDRED = {"task": Rate(timedelta(seconds=0.6))}


@pytest.fixture(params=["sqlite", "postgresql"])
def kit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """20,000 due runs of one key, 1,000 of another, and many that have ended."""
    with tables_of(request.param, request, tmp_path_factory.mktemp("rates")) as engine:
        made = Kit(engine)
        waits = {"job_type": "'task'", "run_at": LONG_AGO, "rate_mark": "'waits'"}
        for key, number in (("a", 20_000), ("b", 1_000)):
            add(engine, "job_runs", number, **waits, rate_key=f"'{key}'", priority="i % 2")
        ended = {"job_type": "'task'", "finished_at": LONG_AGO, "status": "'succeeded'"}
        add(engine, "job_runs", 20_000, **ended, rate_key="'a'")
        yield made
        made.close()


@pytest.mark.parametrize("statistics", [False, True])
def test_backlog_of_a_rate_costs_a_look_nothing(kit: Kit, statistics: bool) -> None:
    if statistics:
        run(kit.engine, "ANALYZE")
    with sent_by(kit.engine) as sent:
        assert rates.open_starts(kit.books, HUNDRED, kit.request()).opened == 2
        claims = kit.claim(side_by_side=True)
        assert len(claims) == 2
        assert not rates.spend(kit.books, HUNDRED, claims)
        assert rates.open_starts(kit.books, HUNDRED, kit.request()).opened == 0
        rates.mend(kit.books, ["task"], HUNDRED)
        kit.looks.look_at_queue()
    costs = {
        statement: cost(kit.engine, [(statement, given)]) for statement, given in sent.statements
    }
    assert {each: pages for each, pages in costs.items() if pages > 300} == {}
