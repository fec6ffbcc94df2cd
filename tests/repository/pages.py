"""The pages of the documentation, and their blocks of code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("contributing/*.md"))]
_BLOCK = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; *line* is the number of its first line."""

    page: Path
    language: str
    line: int
    text: str

    @property
    def name(self) -> str:
        """The name of a test of this block."""
        return f"{self.page.name}:{self.line}"

    @property
    def code(self) -> CodeType:
        """The block as compiled Python, whose errors show the line of the page."""
        lines = "\n" * (self.line - 1) + self.text
        return compile(lines, str(self.page), "exec", dont_inherit=True)


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """Return the blocks of *page*: those in *language*, or all."""
    text = page.read_text()
    matches = [
        Block(
            page,
            match[2],
            text.count("\n", 0, match.start(3)) + 1,
            re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE),
        )
        for match in _BLOCK.finditer(text)
    ]
    return [block for block in matches if language in (None, block.language)]


def all_blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages that are in one of *languages*."""
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def named(name: str) -> Path:
    """Return the page called *name*."""
    (page,) = (page for page in PAGES if page.name == name)
    return page


def prelude() -> dict[str, Any]:
    """Return the names with which the blocks of a page begin: an app without the extension."""
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///shop.sqlite"
    return {"__name__": "shop", "app": app, "db": SQLAlchemy(app)}


def dispose(names: dict[str, Any]) -> None:
    """Close the connections of the app in *names*."""
    with names["app"].app_context():
        names["db"].engine.dispose()


def without_times(output: str) -> str:
    """Return *output* without durations, which differ each time."""
    return re.sub(r"\d+(\.\d+)? (ms|s)\b", "0 s", output)
