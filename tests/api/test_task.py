"""Declaring tasks: what is stored, what is refused, and that a plain call stays a plain call."""

from __future__ import annotations

import gc
import logging
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from flask_cronjobs import (
    CronJobs,
    Retry,
    Task,
    TaskError,
    UnknownTask,
    current_run,
    in_run,
    in_worker,
)


@pytest.fixture
def bare() -> CronJobs:
    """The extension without an app: declaring needs none."""
    return CronJobs()


def handler(user_id: int, week: str = "now") -> str:
    """The handler's own docstring."""
    return f"{user_id} {week}"


def test_bare_decorator_makes_a_task_of_the_function_s_name(bare: CronJobs) -> None:
    task = bare.task(handler)
    assert isinstance(task, Task)
    assert bare.tasks["handler"] is bare.get("handler") is task
    assert task.options.queue == "default"
    assert (task.name, task.__name__, task.__wrapped__) == ("handler", "handler", handler)
    assert task.__doc__ == "The handler's own docstring."


def test_plain_call_is_a_plain_call(bare: CronJobs) -> None:
    task = bare.task(handler)
    assert task(1) == "1 now"
    assert task(user_id=2, week="then") == "2 then"
    with pytest.raises(TypeError):
        task()  # type: ignore[call-arg]


def test_keywords_are_kept(bare: CronJobs) -> None:
    options: dict[str, Any] = {
        "queue": "mail", "priority": 5, "retry": Retry(max_attempts=3), "concurrency": 2,
        "concurrency_key": "user:{user_id}", "atomic": True,
    }  # fmt: skip
    task = bare.task(name="weekly", timeout=timedelta(minutes=1), **options)(handler)
    assert {name: getattr(task.options, name) for name in options} == options
    assert (task.name, task.options.timeout) == ("weekly", 60.0)


def test_schedules_declare_definitions(bare: CronJobs) -> None:
    task = bare.task(
        name="weekly", schedule="0 7 * * 1", timezone="Europe/Berlin", payload={"user_id": 1},
        catchup="all", overlap="allow",
    )(handler)  # fmt: skip
    assert task.schedule("@daily", name="daily", payload={"user_id": 2}) is task
    assert list(bare.declarations) == ["weekly", "daily"]
    declared = bare.declarations["weekly"]
    assert (declared.schedule, declared.timezone) == ("0 7 * * 1", "Europe/Berlin")
    assert dict(declared.payload) == {"user_id": 1}
    assert (declared.catchup, declared.overlap) == ("all", "allow")
    with pytest.raises(TaskError, match="Two definitions are called 'daily'"):
        task.schedule("@weekly", name="daily", payload={"user_id": 1})


def positional_only(a: int, /) -> None: ...


def any_number(*args: int) -> None: ...


def test_arguments_that_cannot_be_named_are_refused(bare: CronJobs) -> None:
    with pytest.raises(TaskError, match=r"names 'user', which .* take\. It takes no arguments\.$"):
        bare.task(name="it", concurrency_key="user:{user}")(lambda: None)
    for function in (positional_only, any_number):
        with pytest.raises(TaskError, match="which a payload cannot name"):
            bare.task(function)


def test_second_task_of_a_name_is_refused_and_both_are_named(bare: CronJobs) -> None:
    bare.task(handler)
    with pytest.raises(TaskError, match=r"called 'handler': tests.*handler \(line .*lambda"):
        bare.task(name="handler")(lambda: any_number())


def test_unknown_task_is_refused_with_those_that_are_close(bare: CronJobs) -> None:
    """If no name is close, the message asks whether the module is imported."""
    with pytest.raises(UnknownTask, match="check that the module that declares them is"):
        bare.get("anything")
    bare.task(name="send_weekly_report")(handler)
    with pytest.raises(UnknownTask, match="Did you mean 'send_weekly_report'"):
        bare.get("send_weekly_reports")


#: No database can store these.
UNWRITABLE = [
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    datetime(999, 12, 31, tzinfo=timezone.utc),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": -1}, "delay is -1"),
        ({"delay": 1e12}, "a year"),
        ({"idempotency_key": ""}, "idempotency_key is ''"),
        ({"idempotency_key": "a\0"}, "printable"),
        ({"idempotency_key": "x" * 501}, "1 to 500"),
        ({"queue": "x" * 101}, "1 to 100"),
        ({"priority": 2**40}, "-32768 to 32767"),
        ({"priority": True}, "priority is True"),
        ({"max_attempts": 0}, "1 to 1000"),
        ({"run_at": datetime(2026, 1, 1)}, "Give an aware time"),
        ({"run_at": "tomorrow"}, "run_at is 'tomorrow'. Give an aware time, with a time zone and"),
        *(
            ({"run_at": moment}, "Give an aware time, .* in the years 1000 to 9999")
            for moment in UNWRITABLE
        ),
        ({"delay": "5"}, "delay is '5'. Give seconds"),
        ({"unique_while": "always"}, "unique_while is 'always'"),
        ({"replace": "priority"}, "replace is 'priority'"),
        ({"commit": "no"}, "commit is 'no'. Give True or False"),
        ({"replace": True, "unique_while": "pending"}, "a run that has begun is never changed"),
        ({"run_at": datetime.now(timezone.utc), "delay": 5}, "run_at and delay were both given"),
    ],
)
def test_option_of_using_that_cannot_be_right_is_refused(
    bare: CronJobs, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        bare.task(handler).using(**options)


def test_using_leaves_the_task_as_it_is(bare: CronJobs) -> None:
    task = bare.task(handler)
    copy = task.using(priority=5).using(queue="mail")
    assert copy is not task
    assert bare.get("handler") is task
    assert (task.enqueue_options.priority, copy.enqueue_options.priority) == (None, 5)


class TestCurrentRun:
    @pytest.mark.parametrize("name", ["id", "attempt", "max_attempts", "scheduled_for", "progress"])
    def test_outside_of_a_run_it_is_a_clear_error(self, name: str) -> None:
        assert not in_run()
        with pytest.raises(RuntimeError, match="only while a worker runs a handler"):
            getattr(current_run, name)


# Names from other packages are answered with the name to use here


@pytest.fixture
def send(bare: CronJobs) -> Any:
    @bare.task
    def send(to: int) -> int:
        return to

    return send


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_retries": 3}, "Write retry=5 for five attempts in all"),
        ({"retries": 3}, "Write retry=5 for five attempts"),
        ({"cron": "0 7 * * *"}, "Write schedule="),
        ({"tz": "UTC"}, "Write timezone="),
        ({"bind": True}, "Write current_run"),
        ({"timeouts": 3}, "Did you mean 'timeout'"),
    ],
)
def test_options_of_a_task(bare: CronJobs, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=rf"task\(\) has no '{next(iter(options))}'\. ?{message}"):
        bare.task(**options)(lambda: None)
    assert bare.tasks == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 3}, r"Write it in the task's decorator: @jobs\.task\(timeout=…\)"),
        ({"rate": "5/s"}, r"Write it in the task's decorator: @jobs\.task\(rate=…\)"),
        ({"label": "x"}, r"Write it in the task's decorator: @jobs\.task\(label=…\)"),
        ({"timezone": "UTC"}, r"Write it in the task's decorator: @jobs\.task\(timezone=…\)"),
        ({"time_limit": 3}, r"Write timeout=… in the task's decorator: @jobs\.task\(timeout="),
        ({"countdown": 3}, "Write delay=…"),
        ({"eta": 3}, "Write run_at=…"),
        ({"task_id": "a"}, "Write idempotency_key=…"),
        ({"dely": 3}, "Did you mean 'delay'"),
    ],
)
def test_options_of_a_run(send: Any, jobs: CronJobs, options: dict[str, Any], message: str) -> None:
    answer = rf"\(\) has no '{next(iter(options))}'\. ?{message}"
    with pytest.raises(TypeError, match="using" + answer):
        send.using(**options)
    with pytest.raises(TypeError, match="enqueue" + answer):
        jobs.enqueue("send", {}, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tz": "UTC"}, "Write timezone="), ({"timezon": "UTC"}, "Did you mean 'timezone'")],
)
def test_options_of_a_schedule(
    send: Any, jobs: CronJobs, options: dict[str, Any], message: str
) -> None:
    answer = rf"\(\) has no '{next(iter(options))}'\. ?{message}"
    with pytest.raises(TypeError, match="schedule" + answer):
        send.schedule("@daily", name="nightly", **options)
    with pytest.raises(TypeError, match="add_definition" + answer):
        jobs.add_definition("nightly", send, schedule="@daily", **options)


def test_options_among_the_arguments(context: None, jobs: CronJobs) -> None:
    send = jobs.task(name="send")(lambda to: to)
    with pytest.raises(TypeError, match=r"'delay'\. Give the run's options to using\(\): send\.us"):
        send.enqueue(to=1, delay=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'too'$"):
        send.enqueue(to=1, too=5)  # type: ignore[call-arg]


def test_a_copy_cannot_be_called(send: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TypeError, match=r"write send\.using\(…\)\.enqueue\(…\); .* send\(…\)\."):
        send.using(delay=5)(1)
    assert send(1) == 1
    gc.collect()
    assert caplog.text == ""


def test_a_copy_that_is_dropped_says_that_it_did_nothing(
    context: None, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    work = jobs.task(name="work")(lambda: None)
    with caplog.at_level(logging.WARNING, "flask_cronjobs"):
        work.using(commit=True).using(delay=5).enqueue()
        with jobs.batch("b", then=work.using(priority=5)):
            pass
        assert caplog.messages == []
        work.using(delay=5)
        assert caplog.messages == ["work.using(…) enqueues nothing by itself: call its enqueue(…)"]


def test_a_refused_payload_is_no_dropped_copy(
    context: None, jobs: CronJobs, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.task(name="work")(lambda to: None)
    with pytest.raises(TypeError, match=r"missing a required argument: 'to'"):
        jobs.enqueue("work", {})
    gc.collect()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("argv", "is_worker"),
    [
        (["flask", "--app", "shop", "jobs", "work", "--workers", "2"], True),
        (["/venv/flask/__main__.py", "jobs", "tick"], True),
        (["/venv/bin/celery", "-A", "shop", "worker", "-Q", "default"], True),
        (["/venv/celery/__main__.py", "-A", "shop", "worker"], True),
        (["/venv/bin/celery", "-A", "shop", "beat"], False),
        (["/srv/celery/manage.py", "worker"], False),
        (["flask", "jobs", "admin", "list"], False),
        (["gunicorn", "shop:create_app()"], False),
    ],
)
def test_create_app_can_ask_what_the_app_is_loaded_for(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], is_worker: bool
) -> None:
    monkeypatch.setattr("sys.argv", argv)
    assert in_worker() == is_worker
