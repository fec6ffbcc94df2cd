"""The explanation of a violation: everything that is known about the rows that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tests.soak.history import History


def explain(history: History, by_check: Mapping[str, Sequence[str]], faults: bool = True) -> str:
    """Return a text with each violation, the history of the rows in it, and all *faults*."""
    lines = list(_violations(history, by_check))
    return "\n".join([*lines, *(_faults(history) if faults else [])])


def errors(logs: str) -> list[str]:
    """Return the lines of *logs* that say why something failed, without their numbers."""
    lines = re.findall(
        r"^(?:[\w.]*(?:Error|Trouble|Lost)|Fatal Python error): .*", logs, re.MULTILINE
    )
    return [re.sub(r"\d+", "N", line)[:160] for line in lines]


def _violations(history: History, by_check: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, violations in by_check.items():
        for violation in violations:
            yield f"{name}: {violation}"
            for number in re.findall(r"\brun (\d+)", violation):
                yield from _of_run(history, int(number))
            for number in re.findall(r"\btick (\d+)", violation):
                yield from _of_tick(history, int(number))
            yield ""


def _faults(history: History) -> Iterator[str]:
    yield f"Faults, the last over at {history.calm_since:.3f}:"
    for fault in history.faults:
        yield f"  {fault.at:.3f} to {fault.until:.3f}: {fault.what}{_about(fault)}"


def _about(fault: object) -> str:
    facts = {name: getattr(fault, name) for name in ("pid", "group", "note")}
    return "".join(f", {name} {value}" for name, value in facts.items() if value is not None)


def _of_run(history: History, run_id: int) -> Iterator[str]:
    yield from (f"  {run}" for run in history.runs if run.id == run_id)
    yield from (f"  {row}" for row in history.handovers if row.run_id == run_id)
    yield from (f"  {row}" for row in history.failures if row.run_id == run_id)
    yield from (f"  {line}" for line in history.said if line.run == run_id)


def _of_tick(history: History, pid: int) -> Iterator[str]:
    yield from (f"  {tick}" for tick in history.ticks if tick.pid == pid)
    for fault in history.faults:
        if fault.group == pid:
            yield f"  {fault.at:.3f} to {fault.until:.3f}: {fault.what}{_about(fault)}"
