"""`python -m tests.fuzz`: interrupt handlers at random moments, and print what they left behind."""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests import postgres
from tests.fuzz.driver import Report, fuzz

#: How many problems of the same kind are printed.
SHOWN = 3


def main() -> int:
    """Fuzz as the arguments say; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--interruptions", type=int, default=100, help="on each database")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="default: both")
    parser.add_argument("--seed", type=int, help="of the moments")
    parser.add_argument("--queries", action="store_true", help="interrupt only inside queries")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    databases = [options.database] if options.database else ["sqlite", "postgresql"]
    wrong = [
        _fuzz(database, options.interruptions, seed, options.queries) for database in databases
    ]
    return int(any(wrong))


def _fuzz(database: str, interruptions: int, seed: int, queries: bool) -> int:
    """Fuzz on one kind of database; return the number of problems."""
    mode = " --queries" if queries else ""
    print(f"fuzz: --database {database} --interruptions {interruptions} --seed {seed}{mode}")
    folder = Path(tempfile.mkdtemp(prefix="cronjobs-fuzz-"))
    started = time.monotonic()
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'fuzz.sqlite'}"
        if database == "postgresql":
            url = stack.enter_context(postgres.running_server()).create_database()
        report = fuzz(url, folder, interruptions, seed, queries)
    _tell(report, time.monotonic() - started)
    if report.wrong:
        print(f"What the workers printed is kept in {folder}.", flush=True)
    else:
        shutil.rmtree(folder)
    return len(report.wrong)


def _tell(report: Report, seconds: float) -> None:
    for (kind, how, error), number in sorted(report.interrupted.items()):
        print(f"{number:6}  {kind}, {how}: {error}")
    print(f"{report.interrupted.total()} interruptions in {seconds:.0f} s")
    print(f"{len(report.unheard)} handlers were not interrupted in time")
    for alike in _alike(report.wrong):
        for wrong in alike[:SHOWN]:
            print(f"WRONG  {wrong}")
        if len(alike) > SHOWN:
            print(f"       and {len(alike) - SHOWN} more like that")
    print(f"{len(report.wrong)} wrong", flush=True)


def _alike(wrong: Sequence[str]) -> list[list[str]]:
    """Group the problems that differ only by numbers and by what is in parentheses."""
    groups: dict[str, list[str]] = {}
    for text in wrong:
        groups.setdefault(re.sub(r"\(.*?\)|\d+", "", text), []).append(text)
    return list(groups.values())


if __name__ == "__main__":
    sys.exit(main())
