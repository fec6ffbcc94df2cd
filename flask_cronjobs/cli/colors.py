"""Colors of statuses and levels."""

from __future__ import annotations

import click

COLORS = {
    "succeeded": "green",
    "running": "cyan",
    "failed": "yellow",
    "dead": "red",
    "cancelled": "bright_black",
    "skipped": "bright_black",
    "ok": "green",
    "info": "blue",
    "warn": "yellow",
    "warning": "yellow",
    "error": "red",
    "late": "red",
    "never": "red",
    "overdue": "red",
    "in_doubt": "red",
    "begun": "cyan",
    "done": "green",
}


def paint(status: str, text: str | None = None) -> str:
    """Return *text* in the color of a status or level; `click.echo` strips colors in pipes."""
    text = status if text is None else text
    return click.style(text, fg=COLORS[status]) if status in COLORS else text
