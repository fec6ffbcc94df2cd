"""Schedules in words."""

from __future__ import annotations

import pytest

from flask_cronjobs import ScheduleError
from flask_cronjobs.schedule.cron_text import in_words

EVERY_SECOND_DAY = "1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29 and 31"


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/10 * * * *", "every 10 minutes"),
        ("5-59/10 * * * *", "every 10 minutes from minute 5 on"),
        ("*/25 * * * *", "every hour at the minutes 0, 25 and 50"),
        ("1-3 * * * *", "every hour at the minutes 1 to 3"),
        ("0 * * * *", "every hour"),
        ("@hourly", "every hour"),
        ("5 * * * *", "every hour at minute 5"),
        ("0 */2 * * *", "every 2 hours"),
        ("5 1-23/2 * * *", "every 2 hours from 01:05 on"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:00"),
        ("*/10 9-17 * * 1-5", "every 10 minutes from 09:00 to 17:50, on Monday to Friday"),
        ("* 5 * * *", "every minute from 05:00 to 05:59"),
        ("0 1,3,8-12 * * *", "every day at minute 0 of the hours 1, 3 and 8 to 12"),
        ("0 7 * * *", "every day at 07:00"),
        ("0,30 7,19 * * *", "every day at 07:00, 07:30, 19:00 and 19:30"),
        ("0 7 * * 1-5", "at 07:00, on Monday to Friday"),
        ("0 0 * * 0,6", "at 00:00, on Saturday and Sunday"),
        ("@weekly", "at 00:00, on Sunday"),
        ("30 2 1 * *", "at 02:30, on day 1 of the month"),
        ("@yearly", "at 00:00, on day 1 of January"),
        ("0 8 1,15 3-11 *", "at 08:00, on the days 1 and 15 of March to November"),
        ("0 8 * 3-11 *", "at 08:00, in March to November"),
        ("0 8 * 7 1", "at 08:00, on Monday in July"),
        ("0 0 13 * 5", "at 00:00, on day 13 of the month or on Friday"),
        ("0 0 13 3 5", "at 00:00, on day 13 of March or on Friday in March"),
        (
            "0 0 */2 * 5",
            f"at 00:00, on the days {EVERY_SECOND_DAY} of the month, but only on Friday",
        ),
    ],
)
def test_a_schedule_in_words(cron: str, words: str) -> None:
    assert in_words(cron) == words


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError):
        in_words("61 * * * *")
