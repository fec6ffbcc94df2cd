"""Draw lines as an SVG, without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 40, 48
COLORS = ("#1f5fa8", "#b3541e", "#2b7a3d", "#7a3b8f")


def line_chart(title: str, x: Sequence[str], below: str, lines: Mapping[str, list[float]]) -> str:
    """Return an SVG with a line for each name in *lines*, one value above each of *x*.

    :param below: the name of *x*.
    """
    top = max(max(values) for values in lines.values()) * 1.1
    step = next(size for size in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100) if top / size <= 8)

    def at(place: int, value: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * place / max(len(x) - 1, 1)
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [_text(LEFT, 22, title, "start", bold=True)]
    for number in range(int(top / step) + 1):
        _, height = at(0, number * step)
        parts.append(_line(LEFT, height, WIDTH - RIGHT, height, "#dddddd"))
        parts.append(_text(LEFT - 8, height + 4, f"{number * step:g}", "end"))
    for place, label in enumerate(x):
        across, _ = at(place, 0)
        parts.append(_text(across, HEIGHT - BOTTOM + 18, label, "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, below, "middle"))
    ends = _apart([at(len(x) - 1, values[-1])[1] for values in lines.values()])
    for (name, values), color, end in zip(lines.items(), COLORS, ends, strict=False):
        points = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(_text(WIDTH - RIGHT + 8, end + 4, name, "start", color))
    return _svg(title, parts)


def _apart(heights: list[float]) -> list[float]:
    """Return the *heights* of labels, moved so that no label covers another."""
    moved = list(heights)
    last = -1000.0
    for place in sorted(range(len(heights)), key=heights.__getitem__):
        last = moved[place] = max(heights[place], last + 15)
    return moved


def _svg(title: str, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"
 font-family="sans-serif" font-size="12"><title>{escape(title)}</title>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>
{inside}
</svg>
"""


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{color}"/>'


def _text(
    x: float, y: float, text: str, anchor: str, color: str = "#222222", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{color}"{weight}>{escape(text)}</text>'
