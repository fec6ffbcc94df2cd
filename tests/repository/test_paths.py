"""The number of files and functions that a reader must read to follow a call of a plain app.

The bounds may only be lowered: if you make a path shorter, lower its bounds to its new size.
"""

from __future__ import annotations

import sys
import threading

import pytest

from tests.repository.paths import (
    CALLS,
    DATABASES,
    Size,
    Step,
    Tracer,
    Walk,
    exists,
    walk_of,
    written,
)

BOUNDS = {
    ("enqueue", "sqlite"): Size(9, 20),
    ("enqueue", "postgresql"): Size(9, 20),
    ("tick", "sqlite"): Size(39, 213),
    ("tick", "postgresql"): Size(40, 218),
    ("page", "sqlite"): Size(29, 120),
    ("page", "postgresql"): Size(29, 123),
    ("retry", "sqlite"): Size(17, 75),
    ("retry", "postgresql"): Size(18, 80),
}


def faults(call: str, database: str, walk: Walk) -> str:
    """Return what is wrong with a path that is too long, and what to do; empty if it is not."""
    bound, known = BOUNDS[call, database], written(call, database)
    if walk.size.files <= bound.files and walk.size.functions <= bound.functions:
        return ""
    new, gone = sorted(walk.names - known), sorted(known - walk.names)
    return "\n".join(
        (
            f"{call} passes {walk.size} on {database}; at most {bound} are allowed.",
            *(f"new:  {name}" for name in new),
            *(f"gone: {name}" for name in gone),
            "Look at the path in order: python -m tests.repository.paths"
            f" {call} --database {database}",
        )
    )


@pytest.mark.parametrize("call", CALLS)
def test_path_of_a_plain_app_is_short(call: str, database_url: str) -> None:
    database = "sqlite" if database_url.startswith("sqlite") else "postgresql"
    report = faults(call, database, walk_of(call, database_url))
    assert not report, report


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("call", CALLS)
def test_path_is_written_down_as_its_bound_says(call: str, database: str) -> None:
    """Otherwise a path that grew would be compared with an old one."""
    names = written(call, database)
    functions = [name for name in names if " " in name]
    files = {name.partition(" ")[0] for name in names}
    again = "Write the paths down again: python -m tests.repository.paths --write"
    assert Size(len(files), len(functions)) == BOUNDS[call, database], again


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its code has no qualified names")
@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_written_down_still_exists(call: str, database: str) -> None:
    again = "Write the paths down again: python -m tests.repository.paths --write"
    assert not [name for name in sorted(written(call, database)) if not exists(name)], again


def test_function_that_is_new_on_a_path_is_named() -> None:
    names = sorted(written("enqueue", "sqlite"))
    steps = [Step(file, function) for file, _, function in (name.partition(" ") for name in names)]
    assert faults("enqueue", "sqlite", Walk(tuple(steps))) == ""
    report = faults("enqueue", "sqlite", Walk((*steps, Step("log.py", "unheard_of"))))
    assert "new:  log.py unheard_of" in report
    assert "gone" not in report


def test_tracer_sees_other_threads_until_it_is_stopped() -> None:
    from flask_cronjobs.text import did_you_mean
    from flask_cronjobs.text.humanize import capitalized

    tracer = Tracer()
    with tracer.tracing():
        thread = threading.Thread(target=capitalized, args=("a run",))
        thread.start()
        thread.join()
        tracer.stop()
        did_you_mean("a", ["b"])
    did_you_mean("a", ["b"])
    assert [step[:2] for step in tracer.walk.steps] == [("text/humanize.py", "capitalized")]
    assert tracer.walk.steps[0].thread != threading.current_thread().name
