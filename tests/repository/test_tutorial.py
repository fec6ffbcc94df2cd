"""The tutorial, word for word: each block is added to the app or typed; outputs are as shown."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import Block, blocks, named, without_times

PAGE = named("tutorial.md")


def grown(app: str, block: str) -> str:
    """Return *app* with *block* added: a function replaces one of the same name."""
    if not app:
        return block
    for node in ast.parse(block).body:
        lines = block.splitlines()[_first_line(node) - 1 : node.end_lineno]
        text = "\n".join(lines)
        old = next((n for n in ast.parse(app).body if _name(n) == _name(node)), None)
        parts = app.splitlines()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            parts.insert(0, text)
        elif isinstance(node, ast.Assign):
            place = next(i for i, line in enumerate(parts) if line.startswith("db = ")) + 1
            parts.insert(place, text)
        elif old is not None and _name(node):
            parts[_first_line(old) - 1 : old.end_lineno] = lines
        else:
            parts += ["", "", text]
        app = "\n".join(parts)
    return f"{app}\n"


def _name(node: ast.stmt) -> str | None:
    return node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else None


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
    return min([node.lineno, *(d.lineno for d in decorators)])


def typed(block: Block, folder: Path) -> str:
    """Type *block* in a shell, and return what it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    result = subprocess.run(
        ["sh", "-ec", block.text],
        cwd=folder,
        env={**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        text=True,
        capture_output=True,
        timeout=250,
    )
    assert result.returncode == 0, f"{block.name}: {result.stdout}{result.stderr}"
    return result.stdout


def comparable(output: str) -> list[str]:
    """Return the lines of *output* without times and ids, sorted.

    A worker prints outcomes beside its handlers, so their order is left to chance.
    """
    return sorted(re.sub(r"\brun \d+", "run N", without_times(output)).splitlines())


@pytest.mark.slow
def test_tutorial_grows_an_app_that_prints_what_it_shows(tmp_path: Path) -> None:
    app, output, compared = "", "", 0
    for block in blocks(PAGE):
        if block.language == "python":
            app = grown(app, block.text)
            (tmp_path / "app.py").write_text(app)
        elif block.language == "sh" and "pip install" not in block.text:
            output = typed(block, tmp_path)
        elif block.language == "text" and not block.text.startswith("0 7 "):
            assert comparable(output) == comparable(block.text), block.name
            compared += 1
    assert compared > 5


def test_what_a_block_names_anew_replaces_the_old() -> None:
    app = "import os\n\ndb = 1\n\n\n@one\ndef f():\n    return 1\n\n\ndef g(): ...\n"
    block = "import re\n\njobs = 2\n\n\n@two\ndef f():\n    return 2\n\n\ndef h(): ...\n"
    assert grown(app, block) == (
        "import re\nimport os\n\ndb = 1\njobs = 2\n\n\n@two\ndef f():\n    return 2\n\n\n"
        "def g(): ...\n\n\ndef h(): ...\n"
    )
