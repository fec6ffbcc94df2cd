"""Medians, quartiles and ratios, and a table of them.

Our machines are shared, so single figures say little. The order within a round is steady, since all
work at nearly the same time there, so ratios are computed for each round.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass
class Figure:
    """One measure of one contestant, a value from each round.

    :ivar faults: what went wrong; then there is no figure.
    """

    values: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Whether there is a figure to quote."""
        return bool(self.values) and not self.faults

    @property
    def median(self) -> float:
        """The median of all rounds."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The values between which half of the rounds lie. A single value is both."""
        if len(self.values) == 1:
            return self.values[0], self.values[0]
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    def shown(self, digits: int) -> str:
        """Return the median and the quartiles, or why there is no figure."""
        if self.faults:
            return f"wrong: {self.faults[0]}"
        if not self.values:
            return "-"
        first, third = self.quartiles
        return f"{self.median:,.{digits}f} ({first:,.{digits}f} to {third:,.{digits}f})"


def ratio(one: Figure, other: Figure) -> Figure:
    """Return *one* divided by *other*, for each round."""
    pairs = zip(one.values, other.values, strict=False)
    return Figure([a / b for a, b in pairs if b], [*one.faults, *other.faults])


@dataclass
class Table:
    """The figures of one kind of work.

    :ivar name: a short name, for files.
    :ivar title: what was measured.
    :ivar columns: the name of each measure, and the digits after its point.
    :ivar compared: the columns that get another one: the base's figure relative to the row's.
    :ivar base: the label of the base of ratios.
    :ivar less_is_better: whether a smaller figure is the better one.
    :ivar rows: the figures of each contestant, by its label, one for each column.
    """

    name: str
    title: str
    columns: dict[str, int]
    compared: dict[str, str]
    base: str = "Flask-CronJobs"
    less_is_better: bool = False
    rows: dict[str, dict[str, Figure]] = field(default_factory=dict)

    def add(self, label: str, values: dict[str, float], fault: str | None = None) -> None:
        """Add the values of a round."""
        row = self.rows.setdefault(label, {name: Figure() for name in self.columns})
        for column, value in values.items():
            row[column].values.append(value)
            if fault:
                row[column].faults.append(fault)

    def faults(self) -> set[str]:
        """Return the faults of all rounds."""
        return {
            f"{label}: {fault}"
            for label, row in self.rows.items()
            for figure in row.values()
            for fault in figure.faults
        }

    def slug(self, column: str) -> str:
        """Return a name for a file about *column*: the table's, and the column's first word."""
        return f"{self.name}-{column.split()[0].strip(',').replace('/', '-').lower()}"

    def markdown(self) -> str:
        """Return the table as Markdown."""
        head, *lines = self._cells()
        rule = ["---", *["---:"] * (len(head) - 1)]
        return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *lines])

    def text(self) -> str:
        """Return the table for a terminal."""
        lines = self._cells()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        )

    def ratio(self, label: str, column: str) -> str:
        """Return the base's figure divided by that of *label*; "-" for the base itself."""
        if self.base not in self.rows or label == self.base:
            return "-"
        return ratio(self.rows[self.base][column], self.rows[label][column]).shown(2)

    def _cells(self) -> list[list[str]]:
        lines = [["", *(name for column in self.columns for name in self._names(column))]]
        for label, row in self.rows.items():
            line = [label]
            for column, digits in self.columns.items():
                line.append(row[column].shown(digits))
                if column in self.compared:
                    line.append(self.ratio(label, column))
            lines.append(line)
        return lines

    def _names(self, column: str) -> list[str]:
        return [column, self.compared[column]] if column in self.compared else [column]
