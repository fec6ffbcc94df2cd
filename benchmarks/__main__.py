"""Run all benchmarks, one after the other: ``python -m benchmarks [--short]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Run each in its own process; exit 1 if one of them missed its limit."""
    folder = Path(__file__).parent
    packages = [path.parent for path in folder.glob("[a-z]*/__main__.py")]
    names = sorted(path.stem for path in [*folder.glob("[a-z]*.py"), *packages])
    missed = []
    for name in names:
        print(f"== benchmarks.{name}", flush=True)
        if subprocess.call([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]) != 0:
            missed.append(name)
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
