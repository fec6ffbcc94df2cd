"""Names and messages from the tables reach terminals and logs as plain text, quoted for shells."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

import pytest

from flask_cronjobs import CronJobs, SetupError
from flask_cronjobs.cli.crontab import wake_texts
from flask_cronjobs.log import log_run, logger
from flask_cronjobs.models import JobBatch
from tests.marks import on_both
from tests.rows import Rows, ago

from .conftest import Run

#: A line break that fakes a line, a color, a bell, and an override of the writing direction.
ODD = "odd\n\x1b[31mfake\x07\u202eline\u2066\x9b\u2028"
FORBIDDEN = "\x1b\x07\u202e\u2066\x9b\r\u2028"
SHELL = "$(touch x); 'y'"


@pytest.fixture
def odd_run(rows: Rows) -> int:
    """Insert rows of each kind with odd texts; return the id of a dead run."""
    rows.tick(host=ODD, worker=ODD)
    definition = rows.definition(ODD, job_type=ODD, schedule=ODD, timezone=ODD)
    odd: dict[str, Any] = dict.fromkeys(("job_type", "queue", "idempotency_key"), ODD)
    odd["definition_id"] = definition
    run_id = rows.run("dead", error_type=ODD, last_error=ODD, **odd)
    rows.failure(run_id, 1, worker=ODD, error=ODD, error_type=ODD, stack=ODD)
    rows.operation(ODD, run_id, actor=ODD)
    rows.run(job_type=ODD, queue=ODD)
    rows.effect(ODD, state="in_doubt", locked_by=ODD)
    return run_id


@pytest.mark.parametrize(
    "args",
    [
        *([], ["list"], ["list", "--limit", "1"], ["show", "ID"], ["retry", "ID"], ["run", ODD]),
        *([verb, "--task", ODD, "--yes"] for verb in ("retry", "cancel")),
        *(["definitions"], ["definitions", "--limit", "1"], ["effects"], ["doctor"], [ODD]),
        *([verb, ODD] for verb in ("pause", "resume")),
        *(["pause", f"{ODD}x"], ["operations"], ["effects", "--done", f"{ODD}x"]),
        *(["effects", option, ODD] for option in ("--done", "--redo")),
        ["tick", "--dry-run"],
    ],
)
def test_no_command_prints_control_characters(run: Run, odd_run: int, args: list[str]) -> None:
    group = () if args[:1] == ["tick"] else ("admin",)
    result = run(*group, *(str(odd_run) if arg == "ID" else arg for arg in args))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    output = result.output
    assert output
    assert [char for char in FORBIDDEN if char in output] == [], output


@pytest.mark.parametrize("args", [["show", "ID"], ["wait", "ID"], ["list"], ["doctor"], []])
def test_no_line_of_a_stranger_begins_at_the_left_margin(
    run: Run, rows: Rows, args: list[str]
) -> None:
    odd = "odd\nforged line\r\nforged too"
    values: dict[str, Any] = dict.fromkeys(
        ("job_type", "queue", "label", "idempotency_key", "last_error"), odd
    )
    run_id = rows.run("dead", error_type=odd, **values)
    rows.failure(run_id, 1, worker=odd, error=odd, error_type=odd, stack=odd)
    result = run("admin", *(str(run_id) if arg == "ID" else arg for arg in args))
    assert [line for line in result.output.splitlines() if line.startswith("forged")] == []


def test_a_tick_prints_a_line_for_each_run_whatever_its_error_says(
    run: Run, jobs: CronJobs, rows: Rows
) -> None:
    @jobs.task(name="odd")
    def odd() -> None:
        raise ValueError(ODD)

    rows.run(job_type="odd")
    output = run("tick").output
    assert [char for char in FORBIDDEN if char in output] == []
    assert [line.split()[0] for line in output.splitlines()] == ["failed", "tick:"]


def test_a_log_line_is_one_line_without_control_characters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    below: dict[str, Any] = {"error": ValueError(ODD), "stack": f"Traceback:\n  {ODD}"}
    log_run(
        logging.INFO, "ran", task=ODD, run_id=1, attempt=1, worker=ODD, why=ODD, actor=ODD, **below
    )
    logger.warning("%s and %s", ODD, ValueError(ODD))
    stack = caplog.records[0].exc_text or ""
    assert "fake" in stack
    assert [char for char in FORBIDDEN if char in stack] == []
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert [char for char in FORBIDDEN + "\n" if char in record.getMessage()] == []
        assert "fake" in record.getMessage()
    assert caplog.records[1].msg == "%s and %s"  # Monitors group records by it.
    assert caplog.records[0].cronjobs_task == ODD  # type: ignore[attr-defined]


def test_commands_to_paste_are_quoted(run: Run, rows: Rows) -> None:
    for number in range(13):
        rows.definition(f"{SHELL}{number:02}")
    command = run("admin", "pause", f"{SHELL}00").output.partition(": ")[2]
    assert shlex.split(command) == ["flask", "jobs", "admin", "resume", f"{SHELL}00"]
    assert "All 13: flask jobs admin definitions\n" in run("admin").output
    rows.definition("-x")
    command = run("admin", "pause", "--", "-x").output.partition(": ")[2]
    assert run(*shlex.split(command)[2:]).output == "Resumed -x.\n"
    line = run("admin", "definitions", "--limit", 9).output.partition("More: ")[2].splitlines()[0]
    assert shlex.split(line)[-2:] == ["--after", f"{SHELL}08"]


def test_advice_about_a_name_with_a_dash_can_be_pasted(
    run: Run, jobs: CronJobs, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.task(name="send")(lambda: None)
    rows.insert(JobBatch(key="-x", opened_at=ago(2 * 86400)))
    broken = {"job_type": "send", "schedule": "never", "origin": "database"}
    rows.definition("-x", next_run_at=ago(60), **broken)
    run("tick")
    advice = caplog.messages[-1] + "\n" + run("admin", "doctor").output
    for words, answer in (("pause it", "Paused -x."), ("close it", "Closed -x.")):
        command = advice.partition(f"{words}: ")[2].splitlines()[0]
        assert run(*shlex.split(command)[2:]).output.splitlines()[-1].startswith(answer)


@on_both
def test_a_user_whose_name_is_not_utf_8_can_act(
    run: Run, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "j\udcf6rg\n")
    for args in (("cancel", rows.run()), ("pause", "--queue", "mail")):
        result = run("admin", *args)
        assert result.exit_code == 0, result.exception
    assert run("admin", "operations").output.count("j rg  (shell)") == 2


@pytest.mark.parametrize("char", ["\n", "\r", "\x1b", "\0"])
def test_a_path_that_would_break_the_crontab_line_is_refused(char: str) -> None:
    for folder, log in ((f"/srv/a{char}b", "/x"), ("/srv", f"/x{char}* * * * * root")):
        with pytest.raises(SetupError, match="control character"):
            wake_texts(Path(folder), ("/srv/flask", "jobs", "tick"), None, Path(log), 20)
