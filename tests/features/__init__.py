"""Tests of the features: a folder or a file for each."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType


def parts(name: str) -> list[ModuleType]:
    """Return the modules called *name* of the features' folders.

    With these, a feature adds to the tests of other parts, which pass without it: ``statements`` to
    be rendered, ``plans`` to be explained, ``machines`` for random histories, ``kills`` at
    failpoints, and tasks and checks for the ``soak``.
    """
    paths = sorted(Path(__file__).parent.glob(f"*/{name}.py"))
    return [import_module(f"{__name__}.{path.parent.name}.{name}") for path in paths]
