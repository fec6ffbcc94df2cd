"""Durations, ages and distances for people."""

from __future__ import annotations

import pytest

from flask_cronjobs.text.humanize import duration, parse_age, print_age


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.04, "40 ms"),
        (0.9996, "1.0 s"),
        (3.21, "3.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599.7, "1 h"),
        (3600, "1 h"),
        (7380, "2 h 3 min"),
        (86399, "1 d"),
        (187200, "2 d 4 h"),
        (-90, "1 min 30 s"),
        (400 * 86400, "400 d"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds", "printed"),
    [
        ("0s", 0, "0s"),
        ("90", 90, "90s"),
        ("90s", 90, "90s"),
        ("120s", 120, "2m"),
        ("2MIN", 120, "2m"),
        ("1.5 h", 5400, "90m"),
        ("24h", 86400, "1d"),
        ("12d", 12 * 86400, "12d"),
        ("1036801s", 1036801, "1036801s"),
        ("2w", 14 * 86400, "14d"),
        ("0.25s", 0.25, "0.25s"),
        ("0.333333d", 28799.9712, "28799.9712s"),
        ("123456789.123456s", 123456789.123456, "123456789.123456s"),
        ("999999999w", 3660 * 86400, "3660d"),
    ],
)
def test_a_printed_age_is_read_back_as_the_same(text: str, seconds: float, printed: str) -> None:
    assert parse_age(text, unit="s") == seconds
    assert print_age(seconds) == printed
    assert parse_age(printed) == seconds


@pytest.mark.parametrize("text", ["", "90", "h", "2y", "-2h", "1e3s", "٢h", "1.s"])
def test_text_that_is_no_age_is_refused(text: str) -> None:
    assert parse_age(text) is None
