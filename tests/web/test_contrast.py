"""The colors of the history cells and of the chart stand out from what is behind them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import flask_cronjobs.web

CSS = (Path(flask_cronjobs.web.__file__).parent / "static" / "pages.css").read_text()
FILLS = ("good-fill", "warn-fill", "bad-fill", "busy-fill", "idle-fill")


def _colors(scheme: str) -> dict[str, str]:
    """The colors of the light or the dark scheme."""
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    found = re.findall(r"--([a-z-]+): #([0-9a-f]{6});", blocks[scheme == "dark"])
    return dict(found)


def _luminance(color: str) -> float:
    """The relative luminance by WCAG 2."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("behind", ["card", "paper"])
def test_each_fill_has_a_contrast_of_three(scheme: str, fill: str, behind: str) -> None:
    colors = _colors(scheme)
    assert _contrast(colors[fill], colors[behind]) >= 3, (colors[fill], colors[behind])


def test_no_cell_is_dimmed() -> None:
    rules = re.findall(r"([^{}]*)\{([^{}]*)\}", CSS)
    assert not [name for name, rule in rules if "cell" in name and "opacity" in rule]
