"""How long a failed run waits, and whether it is retried at all."""

from __future__ import annotations

from typing import Any

import pytest

from flask_cronjobs import Retry, TaskError
from flask_cronjobs.core.tasks.retry import CallableRetry, retry_policy

ERROR = ValueError("broken")
PLAIN: dict[str, Any] = {"base": 10, "cap": 1000, "jitter": False}


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ("exponential", [10, 20, 40, 80, 160, 320, 640, 1000, 1000]),
        ("linear", [10, 20, 30, 40, 50, 60, 70, 80, 90]),
        ("quadratic", [10, 40, 90, 160, 250, 360, 490, 640, 810]),
        ("fixed", [10] * 9),
    ],
)
def test_delay_grows_as_the_backoff_says(backoff: Any, delays: list[float]) -> None:
    retry = Retry(backoff=backoff, **PLAIN)
    assert [retry.delay(attempt, ERROR) for attempt in range(1, 10)] == delays


@pytest.mark.parametrize("backoff", ["exponential", "linear", "quadratic", "fixed"])
def test_delay_of_a_late_attempt_is_the_cap(backoff: Any) -> None:
    assert Retry(backoff=backoff, base=1000, cap=60, jitter=False).delay(1000, ERROR) == 60


def test_jitter_spreads_a_delay_over_its_upper_half() -> None:
    retry = Retry(base=100, cap=1000)
    delays = [retry.delay(1, ERROR) for _ in range(200)]
    assert all(delay is not None and 50 <= delay <= 100 for delay in delays)
    assert len(set(delays)) > 100


@pytest.mark.parametrize(
    ("policy", "error", "again"),
    [
        ({"on": OSError}, ConnectionError(), True),
        ({"on": OSError}, ValueError(), False),
        ({"on": (OSError, KeyError)}, KeyError(), True),
        ({"not_on": ValueError}, ValueError(), False),
        ({"not_on": ValueError}, KeyError(), True),
        ({"on": OSError, "not_on": ConnectionError}, ConnectionError(), False),
        ({}, SystemExit(1), True),
    ],
)
def test_exceptions_decide_whether_it_is_tried_again(
    policy: dict[str, Any], error: BaseException, again: bool
) -> None:
    assert (Retry(**policy).delay(1, error) is not None) is again


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_attempts": 0}, "max_attempts is 0. Give a whole number from 1 to 1000"),
        ({"max_attempts": 1001}, "max_attempts is 1001"),
        ({"max_attempts": True}, "max_attempts is True"),
        ({"backoff": "random"}, "backoff is 'random'. Give one of 'exponential', 'linear'"),
        ({"base": -1}, "base is -1"),
        ({"cap": float("inf")}, "cap is inf"),
        ({"base": float("nan")}, "base is nan"),
        ({"jitter": "no"}, "jitter is 'no'. Give True or False"),
        ({"on": "ValueError"}, "on is 'ValueError'. Give exception classes"),
        ({"not_on": (ValueError, 3)}, "3). Give exception classes"),
    ],
)
def test_values_that_cannot_be_right_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as refusal:
        Retry(**values)
    assert message in str(refusal.value)


class TestPolicies:
    @pytest.mark.parametrize(
        ("value", "attempts"),
        [(None, 7), (True, 7), (False, 1), (3, 3), (Retry(max_attempts=4), 4)],
    )
    def test_number_of_attempts_is_what_retry_says(self, value: Any, attempts: int) -> None:
        assert retry_policy(value, 7).max_attempts == attempts

    @pytest.mark.parametrize(
        ("seconds", "bounded"), [(6, 6.0), (None, None), (-5, 0.0), (1e12, 366 * 86400.0)]
    )
    def test_callable_says_the_seconds_within_bounds(self, seconds: Any, bounded: Any) -> None:
        policy = retry_policy(lambda *failed: {(3, ERROR): seconds}[failed], 7)
        assert isinstance(policy, CallableRetry)
        assert (policy.max_attempts, policy.delay(3, ERROR)) == (7, bounded)

    @pytest.mark.parametrize("value", ["ten", 2.5, 0, -1, 2000, [3]])
    def test_anything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(TaskError):
            retry_policy(value, 7)
