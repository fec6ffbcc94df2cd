"""The store beside its model, through random histories on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from flask_cronjobs.db.create import create_tables
from tests.state_machine.features import (
    BatchMachine,
    EffectMachine,
    KeyMachine,
    MixedMachine,
    OrderMachine,
    RateMachine,
    SlotMachine,
    StepMachine,
)
from tests.state_machine.store_machine import StoreMachine, compare


class WholeMachine(SlotMachine, OrderMachine, BatchMachine, EffectMachine, MixedMachine):
    """All rules at once."""


#: `MixedMachine` has those of keys, steps and rates, which are by themselves in the slow run.
FOCUSED = (SlotMachine, OrderMachine, BatchMachine, EffectMachine, RateMachine, MixedMachine)
ALONE = (KeyMachine, StepMachine)


@pytest.mark.parametrize(
    ("rules", "on_sqlite", "on_postgresql"),
    [
        *((rules, 12, 5) for rules in FOCUSED),
        *(
            pytest.param(rules, 150, 80, marks=pytest.mark.slow)
            for rules in (*FOCUSED, *ALONE, WholeMachine)
        ),
    ],
)
def test_the_store_does_as_its_model(
    rules: type[StoreMachine], database_url: str, on_sqlite: int, on_postgresql: int
) -> None:
    engine = create_engine(database_url)
    create_tables(engine)
    try:
        examples = on_sqlite if engine.dialect.name == "sqlite" else on_postgresql
        compare(rules, examples, engine=engine)
    finally:
        engine.dispose()
