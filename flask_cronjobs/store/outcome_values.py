"""Outcomes as the parameters of the statements that record them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..text import clean
from ..types import Outcome
from .dialect import Dialect, array_text, json_text
from .sql.outcomes import OUTCOME_COLUMNS


def outcome_parameters(dialect: Dialect, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return *outcomes* as the JSON array that SQLite's statements read."""
    return {"outcomes": json.dumps([_outcome_row(dialect, outcome) for outcome in outcomes])}


def is_plain(outcome: Outcome) -> bool:
    """Return whether *outcome* is a success without a warning, as most are."""
    return outcome.kind == "succeeded" and outcome.error is None


def success_arrays(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return what `outcome_arrays` does, for plain successes, of which there may be a thousand."""
    usual = outcomes[0].token
    tokens = [outcome.token for outcome in outcomes]
    results = [outcome.result for outcome in outcomes]
    return {
        "usual_token": usual,
        "ids": f"{{{','.join([str(outcome.id) for outcome in outcomes])}}}",
        "tokens": array_text(tokens if tokens.count(usual) < len(tokens) else ()),
        "results": array_text(
            [None if each is None else json_text(each) for each in results]
            if results.count(None) < len(results)
            else ()
        ),
    }


def outcome_arrays(dialect: Dialect, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return *outcomes* as the arrays that PostgreSQL's exchange reads, a column each."""
    rows = [_outcome_row(dialect, outcome) for outcome in outcomes]
    usual = {"token": rows[0]["token"], "kind": "succeeded"}
    arrays: dict[str, object] = {"usual_token": usual["token"]}
    for name in OUTCOME_COLUMNS:
        column = [row.get(name) for row in rows]
        unusual = any(value != usual.get(name) for value in column)
        arrays[f"{name}s"] = array_text(column if unusual else ())
    return arrays


def _outcome_row(dialect: Dialect, outcome: Outcome) -> dict[str, object]:
    """Return *outcome* as the statements read it; a plain success needs few keys."""
    row: dict[str, object] = {"id": outcome.id, "token": outcome.token, "kind": outcome.kind}
    if outcome.result is not None:
        row["result"] = json_text(outcome.result)
    if outcome.error is not None:
        row |= {"error": clean(outcome.error), "error_type": clean(outcome.error_type)}
    if outcome.kind != "succeeded":
        row |= {
            "attempt": outcome.attempt,
            "stack": clean(outcome.stack),
            "delay": outcome.delay,
            "until": None if outcome.until is None else dialect.instant(outcome.until),
            "reclaimed": int(outcome.reclaimed),
        }
    return row
