"""Print the oldest versions that pyproject.toml declares, as constraints for pip."""

from __future__ import annotations

import re
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def constraints() -> list[str]:
    """Return ``name==version`` for each dependency with a lower bound."""
    # Python 3.10 has no tomllib.
    bounds = re.findall(r'"([\w.-]+)(?:\[\w+\])?>=([\d.]+)"', PYPROJECT.read_text())
    return [f"{name}=={version}" for name, version in bounds]


if __name__ == "__main__":
    print("\n".join(constraints()))
