"""The store beside its model, in random histories on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from flask_cronjobs.db.create import create_tables
from tests.features import parts
from tests.state_machine.features import (
    BatchMachine,
    EffectMachine,
    KeyMachine,
    MixedMachine,
    OrderMachine,
    SlotMachine,
    StepMachine,
)
from tests.state_machine.store_machine import StoreMachine, compare

#: The modules `machines` of the features' tests.
OF_FEATURES = parts("machines")
#: The rules of keys and of steps, with those that features mix with them.
MIXED = type("MixedMachine", (*(part.MIXED for part in OF_FEATURES), MixedMachine), {})
#: All rules at once.
WHOLE = type("WholeMachine", (SlotMachine, OrderMachine, BatchMachine, EffectMachine, MIXED), {})
#: `MIXED` includes the rules of keys and of steps; the slow run also has each alone.
FOCUSED = (
    *(SlotMachine, OrderMachine, BatchMachine, EffectMachine),
    *(part.ALONE for part in OF_FEATURES),
    MIXED,
)
ALONE = (KeyMachine, StepMachine)


@pytest.mark.parametrize(
    ("rules", "on_sqlite", "on_postgresql"),
    [
        *((rules, 12, 5) for rules in FOCUSED),
        *(
            pytest.param(rules, 150, 80, marks=pytest.mark.slow)
            for rules in (*FOCUSED, *ALONE, WHOLE)
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
