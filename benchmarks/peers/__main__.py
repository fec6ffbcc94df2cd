"""Compare Flask-CronJobs with its peers at the same work, interleaved in rounds.

``python -m benchmarks.peers`` makes an environment for each peer, starts PostgreSQL, measures, and
writes ``benchmarks/RESULTS.md``. A part of it, asked for with ``--only``, ``--work``, ``--server``
or ``--short``, prints tables and writes only with ``--output``. Each job notes its call; a figure
counts only if each job ran exactly once.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .arena import STATES, running_arena
from .report import Results
from .work import KINDS, Plan

#: Debian's PostgreSQL.
DEBIAN = "/usr/lib/postgresql/{}/bin"


#: The work of ``--short``, for CI: ours and plain psycopg, which need no other environment.
SHORT = ("drain", "sqlite", "enqueue", "bulk", "latency")

#: The page that a full run writes.
RESULTS = Path(__file__).parents[1] / "RESULTS.md"


def main() -> None:
    """Measure what the command line asks for; exit 1 if a job did not run exactly once."""
    options = parse()
    programs = Path(DEBIAN.format(options.server)) if options.server else None
    if programs and not (programs / "initdb").exists():
        sys.exit(f"PostgreSQL {options.server} is not in {programs}. Install it with apt-get.")
    plan = plan_of(options)
    with running_arena(programs) as arena:
        results = Results(arena.version(), plan.rounds)
        print(
            f"{os.cpu_count()} cores, load {results.load:.1f}, Python {sys.version.split()[0]}, "
            f"PostgreSQL {results.server}; medians of {plan.rounds} rounds (quartiles)",
            flush=True,
        )
        for kind in options.work or (SHORT if options.short else KINDS):
            for table in KINDS[kind](arena, plan):
                results.tables.append(table)
                print(f"\n{table.title}\n{table.text()}", flush=True)
    if output := options.output or (None if partial(options) else RESULTS):
        results.write(output)
    if faults := [fault for table in results.tables for fault in table.faults()]:
        sys.exit("\n".join(faults))


def partial(options: argparse.Namespace) -> bool:
    """Return whether the command line asks for less than everything."""
    return bool(options.short or options.only or options.work or options.server)


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
    parser.add_argument("--work", type=_names, default=[], help=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--runs", type=int, default=10_000, help="jobs to drain")
    parser.add_argument("--many", type=int, default=50_000, help="the same for the fast ones")
    parser.add_argument("--states", type=_names, default=["fresh"], help=",".join(STATES))
    parser.add_argument("--server", help="Debian's PostgreSQL of this version, such as 15")
    parser.add_argument("--output", type=Path, help=f"write there, else to {RESULTS.name} if full")
    parser.add_argument("--short", action="store_true", help="a form for CI")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    main()
