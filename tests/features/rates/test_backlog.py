"""Checking for starts costs the same, however many runs wait."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from flask_cronjobs.core.tasks.rate import Rate
from flask_cronjobs.features.rates import rates
from tests.kit import Kit
from tests.plans import LONG_AGO, add, cost, run, sent_by, tables_of

pytestmark = pytest.mark.slow

HUNDRED = {"task": Rate(timedelta(seconds=0.6))}


@pytest.fixture(params=["sqlite", "postgresql"])
def rated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kit]:
    """20,000 due runs of one key, 1,000 of another, and many that have ended."""
    with tables_of(request.param, request, tmp_path_factory.mktemp("rates")) as engine:
        kit = Kit(engine)
        waits = {"job_type": "'task'", "run_at": LONG_AGO, "gate": "'rate'"}
        for key, number in (("a", 20_000), ("b", 1_000)):
            add(engine, "job_runs", number, **waits, rate_key=f"'{key}'", priority="i % 2")
        ended = {"job_type": "'task'", "finished_at": LONG_AGO, "status": "'succeeded'"}
        add(engine, "job_runs", 20_000, **ended, rate_key="'a'")
        yield kit
        kit.close()


@pytest.mark.parametrize("statistics", [False, True])
def test_backlog_of_a_rate_does_not_slow_the_check_for_starts(rated: Kit, statistics: bool) -> None:
    if statistics:
        run(rated.engine, "ANALYZE")
    with sent_by(rated.engine) as sent:
        assert rates.open_starts(rated.books, HUNDRED, rated.request()).opened == 2
        claims = rated.claim(side_by_side=True)
        assert len(claims) == 2
        assert not rates.spend(rated.books, HUNDRED, claims)
        assert rates.open_starts(rated.books, HUNDRED, rated.request()).opened == 0
        rates.open_unrated(rated.books, ["task"], HUNDRED)
        rates.delete_unused_keys(rated.books)
        rated.looks.look_at_queue()
    costs = {
        statement: cost(rated.engine, [(statement, args)]) for statement, args in sent.statements
    }
    assert {sql: pages for sql, pages in costs.items() if pages > 300} == {}
