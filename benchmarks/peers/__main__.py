"""Compare Flask-CronJobs with its peers at the same work, interleaved in rounds.

``python -m benchmarks.peers`` makes an environment for each peer, starts PostgreSQL, measures, and
writes ``benchmarks/RESULTS.md``. With ``--only``, ``--work`` or ``--short`` it prints tables and
writes nothing. Each job notes its call; a figure counts only if each job ran exactly once.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .arena import STATES, running_arena
from .work import KINDS, Plan

#: Debian's PostgreSQL.
DEBIAN = "/usr/lib/postgresql/{}/bin"


def main() -> None:
    """Measure what the command line asks for."""
    options = parse()
    programs = Path(DEBIAN.format(options.server)) if options.server else None
    with running_arena(programs) as arena:
        print(
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
            f"Python {sys.version.split()[0]}, PostgreSQL {arena.version()}",
            flush=True,
        )
        for kind in options.work:
            for table in KINDS[kind](arena, plan_of(options)):
                print(f"\n{table.title}\n{table.text()}", flush=True)


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan that the command line asks for."""
    if options.short:
        return Plan(["ours", "raw"], 1, 500, 1_000, 100, 2_000, 10)
    return Plan(options.only, options.rounds, options.runs, options.many, states=options.states)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_names, default=[], help="ours,pgqueuer,raw,…")
    parser.add_argument("--work", type=_names, default=[*KINDS], help=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=10_000, help="jobs to drain")
    parser.add_argument("--many", type=int, default=50_000, help="the same for the fast ones")
    parser.add_argument("--states", type=_names, default=["fresh"], help=",".join(STATES))
    parser.add_argument("--server", help="Debian's PostgreSQL of this version, such as 15")
    parser.add_argument("--short", action="store_true", help="a form for CI")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    main()
