"""Bars as SVG. Each plot has its own background, so it is readable on light and dark pages."""

from __future__ import annotations

from html import escape

from .figures import Figure, Table

WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 860, 300, 110, 20, 10, 64

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { fill: #1f2328; font: 13px system-ui, sans-serif }
  .title { font-weight: 600; font-size: 15px }
  .quiet { fill: #59636e }
  .ours { fill: #0969da }
  .peer { fill: #8c959f }
  .floor { fill: #d0d7de }
  .spread { stroke: #1f2328; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d }
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .ours { fill: #4493f8 }
    .peer { fill: #656c76 }
    .floor { fill: #3d444d }
    .spread { stroke: #f0f6fc }
  }
"""


def plot(table: Table, column: str) -> str:
    """Return an SVG with a bar for each row of *column*; a line spans half of the rounds."""
    figures = {label: row[column] for label, row in table.rows.items()}
    known = [figure for figure in figures.values() if figure.is_known]
    scale = (WIDTH - LEFT - RIGHT) / max((figure.quartiles[1] for figure in known), default=1)
    height = TOP + len(figures) * (BAR + GAP) + 14
    better = "less is better" if table.less_is_better else "more is better"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(table.title)}: {escape(column)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="16" y="26">{escape(table.title)}</text>',
        f'<text class="quiet" x="16" y="46">{escape(column)}; {better}</text>',
    ]
    for index, (label, figure) in enumerate(figures.items()):
        digits = table.columns[column]
        lines += _bar(label, figure, TOP + index * (BAR + GAP), scale, digits)
    return "\n".join([*lines, "</svg>", ""])


def _bar(label: str, figure: Figure, top: float, scale: float, digits: int) -> list[str]:
    middle = top + BAR * 0.72
    name = f'<text x="{LEFT - 10}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>'
    if not figure.is_known:
        why = escape(figure.shown(digits))
        return [name, f'<text class="quiet" x="{LEFT}" y="{middle:.1f}">{why}</text>']
    width = figure.median * scale
    low, high = (LEFT + value * scale for value in figure.quartiles)
    across = top + BAR / 2
    end = max(LEFT + width, high) + 8
    return [
        name,
        f'<rect class="{_kind(label)}" x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}"/>',
        f'<line class="spread" x1="{low:.1f}" y1="{across}" x2="{high:.1f}" y2="{across}"/>',
        f'<text x="{end:.1f}" y="{middle:.1f}">{figure.median:,.{digits}f}</text>',
    ]


def _kind(label: str) -> str:
    if label.startswith(("Flask-CronJobs", "flask jobs")):
        return "ours"
    return "floor" if label.startswith(("raw", "flask routes")) else "peer"
