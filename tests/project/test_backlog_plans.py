"""A claim costs no more for runs that it may not take, however many stand before its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text

from flask_cronjobs.db.create import create_tables
from tests.project.test_plans import cost_of_a_claim

pytestmark = pytest.mark.slow

BACKLOG = 20_000
#: In the units of `cost_of_a_claim`; to read the backlog would cost some thousands.
MARGIN = 300

KEYED = {"concurrency_limit": "1"}
#: The columns of a backlog, as SQL that may use its number ``i``; `cost_of_a_claim` asks for
#: all queues and for the task ``task``.
BACKLOGS: dict[str, dict[str, str]] = {
    "another task": {"job_type": "'theirs'"},
    "many other tasks": {"job_type": "'theirs ' || i"},
    "delayed": {"run_at": "'2999-01-01 00:00:00'"},
    "delayed, higher priority": {"run_at": "'2999-01-01 00:00:00'", "priority": "5"},
    "delayed, 50 priorities": {"run_at": "'2999-01-01 00:00:00'", "priority": "i % 50"},
    "delayed keys": {
        "run_at": "'2999-01-01 00:00:00'",
        "priority": "5",
        "concurrency_key": "'key ' || i",
        **KEYED,
    },
    "keys of another task": {"job_type": "'theirs'", "concurrency_key": "'k' || i % 1000", **KEYED},
}
CASES = [(name, analyze) for name in BACKLOGS for analyze in (True, False)]


def add_runs(engine: Engine, count: int, analyze: bool, **columns: str) -> None:
    cast = "::timestamptz" if engine.dialect.name == "postgresql" else ""
    values = {"job_type": "'task'", "run_at": "'2026-01-01 00:00:00'", **columns}
    values["run_at"] += cast
    numbers = "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})"
    with engine.begin() as connection:
        connection.execute(
            text(
                f"INSERT INTO job_runs ({', '.join(values)}) SELECT {', '.join(values.values())}"
                f" FROM {numbers.format(count)} SELECT i FROM n) AS n"
            )
        )
        if analyze:
            connection.execute(text("ANALYZE"))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A database without rows."""
    engine = create_engine(database_url)
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize(("backlog", "analyze"), CASES)
def test_claim_costs_no_more_for_runs_that_it_may_not_take(
    engine: Engine, backlog: str, analyze: bool
) -> None:
    few, few_dry = cost_beside(engine, 2_000, backlog, analyze)
    many, many_dry = cost_beside(engine, BACKLOG, backlog, analyze)
    print(engine.dialect.name, backlog, analyze, few, few_dry, many, many_dry)
    assert many < 2 * few + MARGIN
    assert many_dry < 2 * few_dry + MARGIN


def cost_beside(engine: Engine, count: int, backlog: str, analyze: bool) -> tuple[int, int]:
    """The costs of a claim of ten runs behind *count* others, and of one that finds nothing."""
    add_runs(engine, count, analyze, **BACKLOGS[backlog])
    dry = cost_of_a_claim(engine)
    mine = {"run_at": "'2026-01-02 00:00:00'"}
    add_runs(engine, 5, analyze, **mine)
    add_runs(engine, 5, analyze, **mine, concurrency_key="'mine ' || i", **KEYED)
    found = cost_of_a_claim(engine)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM job_runs WHERE run_at = '2026-01-02 00:00:00'"))
    return found, dry


@pytest.mark.parametrize("analyze", [False, True], ids=["without statistics", "with statistics"])
def test_claim_does_not_read_its_own_backlog_behind_what_it_takes(
    engine: Engine, analyze: bool
) -> None:
    add_runs(engine, 1000, analyze)
    few = cost_of_a_claim(engine)
    add_runs(engine, BACKLOG, analyze)
    many = cost_of_a_claim(engine)
    print(engine.dialect.name, "own", few, many)
    assert many < 2 * few + MARGIN
