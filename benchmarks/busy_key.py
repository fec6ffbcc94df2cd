"""Measure whether 10,000 waiting runs of one concurrency key slow down other claims.

    python -m benchmarks.busy_key [--short]

Claims 20 runs without a key repeatedly, first alone and then beside the runs of a key whose one
share is taken. Prints both medians and their ratio. Exits 1 if a claim takes over twice as long and
over a millisecond longer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import create_engine, text

from flask_cronjobs.store import Bookkeeping, Claims, create_tables
from flask_cronjobs.store.rows import ClaimRequest
from tests import postgres

BUSY = 10_000
CLAIMED = 20
RATIO = 2.0
SLACK = 0.001

INSERT = """
INSERT INTO job_runs (job_type, payload, concurrency_key, concurrency_limit, run_at)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {number})
SELECT 't', '{{}}', {key}, {limit}, '2026-01-01 00:00:00' FROM n
"""


def main() -> None:
    """Measure on both databases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="fewer rounds")
    rounds = 30 if parser.parse_args().short else 200
    with tempfile.TemporaryDirectory() as folder, postgres.running_server() as server:
        urls = {
            "sqlite": f"sqlite:///{Path(folder) / 'busy.sqlite'}",
            "postgresql": server.create_database(),
        }
        missed = [name for name, url in urls.items() if not measure(name, url, rounds)]
    if missed:
        sys.exit(f"missed on {', '.join(missed)}")


def measure(name: str, url: str, rounds: int) -> bool:
    """Print the medians on one database; return whether the busy key does not slow claims."""
    engine = create_engine(url)
    create_tables(engine)
    with Bookkeeping(engine) as books:
        insert(books, rounds * CLAIMED, "NULL")
        alone = median(books, rounds)
        insert(books, BUSY, "'busy'")
        Claims(books).exchange([], ClaimRequest(1, "the one share", ("t",)))
        insert(books, rounds * CLAIMED, "NULL")
        beside = median(books, rounds)
    engine.dispose()
    print(
        f"{name}: claim of {CLAIMED} takes {alone * 1000:.2f} ms alone, {beside * 1000:.2f} ms "
        f"beside {BUSY:,} of a busy key: ratio {beside / alone:.2f}"
    )
    return beside <= alone * RATIO or beside - alone <= SLACK


def insert(books: Bookkeeping, number: int, key: str) -> None:
    """Insert runs that are due."""
    limit = "NULL" if key == "NULL" else "1"
    cast = "CAST('{}' AS jsonb)" if books.dialect.name == "postgresql" else "'{}'"
    statement = INSERT.format(number=number, key=key, limit=limit).replace("'{}'", cast)
    if books.dialect.name == "postgresql":
        statement = statement.replace("NULL, NULL", "CAST(NULL AS text), CAST(NULL AS integer)")
        statement = statement.replace("'2026-01-01 00:00:00'", "timestamptz '2026-01-01'")
    else:
        statement = statement.replace("00:00:00'", "00:00:00.000000'")
    books.rows(text(statement))
    books.rows(text("ANALYZE"))


def median(books: Bookkeeping, rounds: int) -> float:
    """Return the median seconds of a claim."""
    claims, times = Claims(books), []
    for number in range(rounds):
        request = ClaimRequest(CLAIMED, f"token {number} {time.time()}", ("t",))
        began = time.perf_counter()
        claimed = claims.exchange([], request).claims
        times.append(time.perf_counter() - began)
        assert len(claimed) == CLAIMED
    return statistics.median(times)


if __name__ == "__main__":
    main()
