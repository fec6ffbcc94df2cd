"""Run all benchmarks, one after the other: ``python -m benchmarks [--short]``."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from benchmarks import argument_parser


def main() -> None:
    """Run each benchmark in its own process; exit 1 if one of them missed its limit."""
    folder = Path(__file__).parent
    files = {path.stem: path for path in folder.glob("[a-z]*.py")}
    files |= {path.parent.name: path for path in folder.glob("[a-z]*/__main__.py")}
    parser = argument_parser("", __doc__, "a short form of each, for CI")
    lines = (f"  {name:<10} {_first_line(files[name])}" for name in sorted(files))
    parser.epilog = "\n".join(("one alone: python -m benchmarks.NAME [--help]", *lines))
    short = ["--short"] if parser.parse_args().short else []
    missed = []
    for name in sorted(files):
        print(f"== benchmarks.{name}", flush=True)
        if subprocess.call([sys.executable, "-m", f"benchmarks.{name}", *short]) != 0:
            missed.append(name)
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


def _first_line(path: Path) -> str:
    """Return the first paragraph of a benchmark's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]


if __name__ == "__main__":
    main()
