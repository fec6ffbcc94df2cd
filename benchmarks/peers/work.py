"""The kinds of work that are measured."""

from __future__ import annotations

from .arena import STATES, Arena, Ended
from .contestants import DRAIN, Contestant
from .figures import Table

WHOLE, SPAN = "whole process, jobs/s", "first call to last outcome, jobs/s"
CLIENT, SERVER = "client CPU µs/job", "server CPU µs/job"


def chosen(groups: dict[str, list[Contestant]], only: list[str]) -> list[Contestant]:
    """Return the contestants whose key is in *only*, or all."""
    return [one for key, group in groups.items() if not only or key in only for one in group]


def drain(arena: Arena, only: list[str], jobs: int, rounds: int, states: list[str]) -> list[Table]:
    """Measure how fast one worker drains *jobs* no-op jobs, for each state of the table."""
    tables = {
        state: Table(
            f"Drain {jobs:,} jobs, one worker; table {STATES[state]}",
            {WHOLE: 0, SPAN: 0, CLIENT: 0, SERVER: 0},
            {WHOLE: "ours to it", SPAN: "ours to it, so measured"},
        )
        for state in states
    }
    contestants = chosen(DRAIN, only)
    for number in range(rounds):
        for contestant in rotated(contestants, number):
            for state, table in tables.items():
                _drain_once(arena, contestant, jobs, state, table)
    return list(tables.values())


def rotated(contestants: list[Contestant], number: int) -> list[Contestant]:
    """Return the contestants in another order each round, so that none always follows another."""
    start = number % len(contestants)
    return contestants[start:] + contestants[:start]


def _drain_once(arena: Arena, one: Contestant, jobs: int, state: str, table: Table) -> None:
    url = arena.loaded(one, jobs, state)
    ended = arena.run(one, "work", url, jobs)
    span = _last_outcome(arena, one, url, ended) - ended.tally.first
    arena.server.drop_database(url)
    values = {
        WHOLE: jobs / ended.seconds,
        SPAN: jobs / span,
        CLIENT: ended.cpu * 1e6 / jobs,
        SERVER: ended.server_cpu * 1e6 / jobs,
    }
    table.add(one.label, values, ended.tally.fault())


def _last_outcome(arena: Arena, one: Contestant, url: str, ended: Ended) -> float:
    if not one.recorded:
        return ended.printed.get("recorded", ended.ended)
    with arena.admin(url) as connection:
        return float(connection.execute(one.recorded.encode()).fetchall()[0][0])
