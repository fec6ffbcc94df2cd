"""Measure whether 10,000 waiting runs of one concurrency key slow down other claims.

Also measure the same beside 10,000 keys with a strict order. The first run of each key is running,
waits for its retry, or is dead, and ten more runs wait for it.

    python -m benchmarks.busy_key [--short]

Claims 20 runs without a key repeatedly, first alone, then beside the parked runs of a key whose one
share is taken, then beside the keys in order. Prints the medians and their ratios, and how long it
takes to park and to open runs. Exits 1 if a claim takes over twice as long and over a millisecond
longer.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import create_engine, text

from benchmarks import argument_parser
from flask_cronjobs.core import gate
from flask_cronjobs.core.claim import ClaimRequest, record_and_claim
from flask_cronjobs.core.worker.claims import BEYOND_RUNS
from flask_cronjobs.db.connection import Bookkeeping
from flask_cronjobs.db.create import create_tables
from tests import postgres

BUSY = 10_000
KEYS = 10_000
BEHIND = 10
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
    parser = argument_parser("busy_key", __doc__, "a form for CI, without the bound")
    short = parser.parse_args().short
    rounds = 30 if short else 200
    with tempfile.TemporaryDirectory() as folder, postgres.running_server() as server:
        urls = {
            "sqlite": f"sqlite:///{Path(folder) / 'busy.sqlite'}",
            "postgresql": server.create_database(),
        }
        missed = [name for name, url in urls.items() if not measure(name, url, rounds)]
    if missed and not short:
        sys.exit(f"missed on {', '.join(missed)}")


def measure(name: str, url: str, rounds: int) -> bool:
    """Print the medians on one database; return whether waiting runs do not slow claims."""
    engine = create_engine(url)
    create_tables(engine)
    with Bookkeeping(engine) as books:
        insert(books, rounds * CLAIMED, "NULL")
        alone = median(books, rounds)
        insert(books, BUSY, "'busy'")
        record_and_claim(books, [], ClaimRequest(1, "the one share", ("t",)))
        parked = seconds_of_parking(books)
        insert(books, rounds * CLAIMED, "NULL")
        beside = median(books, rounds)
        books.rows(text("DELETE FROM job_runs WHERE concurrency_key IS NOT NULL"))
        insert_ordered(books)
        insert(books, rounds * CLAIMED, "NULL")
        ordered = median(books, rounds)
        opening = median_of_openings(books, rounds)
    engine.dispose()
    print(
        f"{name}: claim of {CLAIMED} takes {alone * 1000:.2f} ms alone, {beside * 1000:.2f} ms "
        f"beside {BUSY:,} of a busy key: ratio {beside / alone:.2f}; parking them takes "
        f"{parked * 1000:.0f} ms, once"
    )
    print(
        f"{name}: {ordered * 1000:.2f} ms beside {KEYS:,} keys in strict order with {BEHIND} "
        f"waiting each: ratio {ordered / alone:.2f}; opening the next takes {opening * 1000:.2f} ms"
    )
    return all(
        seconds <= alone * RATIO or seconds - alone <= SLACK for seconds in (beside, ordered)
    )


def seconds_of_parking(books: Bookkeeping) -> float:
    """Park the runs of the busy key, as the first claims of workers do; return how long it took."""
    began = time.perf_counter()
    while record_and_claim(books, [], ClaimRequest(1, "parks", ("t",), beyond=BEYOND_RUNS)).parked:
        pass
    return time.perf_counter() - began


def insert_ordered(books: Bookkeeping) -> None:
    """Insert keys with a strict order, whose first runs keep the others waiting."""
    postgresql = books.dialect.name == "postgresql"
    payload = "CAST('{}' AS jsonb)" if postgresql else "'{}'"
    moment = "timestamptz '{}'" if postgresql else "'{}.000000'"
    past, future = moment.format("2026-01-01 00:00:00"), moment.format("2999-01-01 00:00:00")
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})"
    columns = "job_type, payload, concurrency_key, concurrency_limit, strict, gate"
    firsts = f"""
        INSERT INTO job_runs ({columns}, run_at, status, attempts, locked_by, locked_until,
            concurrency_share, finished_at)
        {numbers.format(KEYS)}
        SELECT 't', {payload}, 'ordered ' || i, 1, true, NULL,
            CASE WHEN i % 3 = 1 THEN {future} ELSE {past} END,
            CASE i % 3 WHEN 0 THEN 'running' WHEN 1 THEN 'failed' ELSE 'dead' END, 1,
            CASE WHEN i % 3 = 0 THEN 'host:1:x' END, CASE WHEN i % 3 = 0 THEN {future} END,
            CASE WHEN i % 3 = 0 THEN 1 END, CASE WHEN i % 3 = 2 THEN {past} END
        FROM n
    """
    behind = f"""
        INSERT INTO job_runs ({columns}, run_at)
        {numbers.format(KEYS * BEHIND)}
        SELECT 't', {payload}, 'ordered ' || (1 + i % {KEYS}), 1, true, 'order', {past} FROM n
    """
    for statement in (firsts, behind, "ANALYZE"):
        books.rows(text(statement))


def median_of_openings(books: Bookkeeping, rounds: int) -> float:
    """Return the median seconds of opening the next run of a key after its first has ended."""
    times: list[float] = []
    for number in range(rounds):
        of_key = f"concurrency_key = 'ordered {1 + number}'"
        ends = "status = 'cancelled', finished_at = CURRENT_TIMESTAMP, locked_by = NULL"
        first = f"SELECT min(id) FROM job_runs WHERE strict AND finished_at IS NULL AND {of_key}"
        (row,) = books.rows(
            text(
                f"UPDATE job_runs SET {ends}, locked_until = NULL, concurrency_share = NULL,"
                f" gate = NULL WHERE id = ({first}) RETURNING id"
            )
        )
        began = time.perf_counter()
        gate.open_behind(books, [row.id])
        times.append(time.perf_counter() - began)
    return statistics.median(times)


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
    times = []
    for number in range(rounds):
        request = ClaimRequest(CLAIMED, f"token {number} {time.time()}", ("t",))
        began = time.perf_counter()
        claimed = record_and_claim(books, [], request).claims
        times.append(time.perf_counter() - began)
        assert len(claimed) == CLAIMED
    return statistics.median(times)


if __name__ == "__main__":
    main()
