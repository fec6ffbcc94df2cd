"""The paths of four calls through the package: the files and functions that each of them passes.

The app has two plain tasks and uses no optional feature. Each call is made once before it is
traced, so that what a process does only once is left out.

``python -m tests.repository.paths`` prints the size of each path. With the names of calls, it also
prints each function in the order of their first calls. ``--write`` records the current paths, with
which `test_paths` compares later ones.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import event, select

import flask_cronjobs
from flask_cronjobs import CronJobs
from flask_cronjobs.core.app_state import State, state_of
from flask_cronjobs.db.statements import deadlines
from flask_cronjobs.models import JobRun
from tests.postgres import running_server
from tests.rows import Rows
from tests.tables import make_tables

PACKAGE = Path(flask_cronjobs.__file__).parent
FOLDER = Path(__file__).parent / "recorded_paths"
DATABASES = ("sqlite", "postgresql")


class Step(NamedTuple):
    """The first call of a function, or the first use of a template.

    :ivar file: its path below the package.
    :ivar function: its qualified name; empty for a template.
    :ivar depth: how many functions of the package called each other to get here.
    :ivar thread: the name of the thread that called it first.
    """

    file: str
    function: str
    depth: int = 0
    thread: str = ""


class Size(NamedTuple):
    """How much a reader who follows a call must read."""

    files: int
    functions: int


class Walk(NamedTuple):
    """The path of a call: each function once, in the order of their first calls."""

    steps: tuple[Step, ...]

    @property
    def size(self) -> Size:
        """The number of files and of functions; templates count as files."""
        return Size(len(self.files), len(self.functions))

    @property
    def files(self) -> list[str]:
        """The files, including templates."""
        return list(dict.fromkeys(step.file for step in self.steps))

    @property
    def functions(self) -> list[str]:
        """The functions, each with its file."""
        return [f"{step.file} {step.function}" for step in self.steps if step.function]

    @property
    def names(self) -> set[str]:
        """The functions and templates, as they are recorded."""
        return {f"{step.file} {step.function}".rstrip() for step in self.steps}


class Tracer:
    """Notes the package's functions that a block calls, also in threads that it starts.

    Comprehensions and the top level of modules are left out, since they differ between versions of
    Python.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Step] = {}
        self._known: dict[CodeType, tuple[str, str] | None] = {}
        self._on = False

    @property
    def walk(self) -> Walk:
        """The path that was noted."""
        return Walk(tuple(self._seen.values()))

    @contextmanager
    def tracing(self) -> Generator[None]:
        """Note what is called in this block, until `stop`."""
        deadlines.end_thread()  # A thread that already runs would not be traced.
        self._on = True
        threading.setprofile(self._see)
        with _without_chance():
            sys.setprofile(self._see)
            try:
                yield
            finally:
                self.stop()
                sys.setprofile(None)
                threading.setprofile(None)  # type: ignore[arg-type,unused-ignore]

    def stop(self) -> None:
        """Note nothing more."""
        self._on = False

    def _see(self, frame: FrameType, what: str, _: object) -> None:
        if not self._on or what != "call":
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = _place(code)
        place = self._known[code]
        if place is not None and place not in self._seen:
            thread = threading.current_thread().name
            self._seen[place] = Step(*place, self._depth(frame.f_back), thread)

    def _depth(self, frame: FrameType | None) -> int:
        depth = 0
        while frame is not None:
            depth += _place(frame.f_code) is not None
            frame = frame.f_back
        return depth


@contextmanager
def _without_chance() -> Generator[None]:
    """In this block, switch threads only where one waits, and collect no garbage.

    Otherwise a keeper would sometimes see a trivial handler running, and some walks would include
    the deletion of a task.
    """
    before = sys.getswitchinterval()
    gc.collect()
    gc.disable()
    sys.setswitchinterval(60.0)
    try:
        with patch.object(sys, "setswitchinterval"):  # A worker would set it.
            yield
    finally:
        sys.setswitchinterval(before)
        gc.enable()


def _place(code: CodeType) -> tuple[str, str] | None:
    """Return the file and the function of *code*, or None if it is not in the package."""
    path = Path(code.co_filename)
    if PACKAGE not in path.parents:
        return None
    file = path.relative_to(PACKAGE).as_posix()
    if path.suffix != ".py":
        return file, ""
    name: str = getattr(code, "co_qualname", code.co_name)  # Python 3.11 added it.
    is_function = code.co_flags & inspect.CO_OPTIMIZED
    is_inner = code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
    return (file, name) if is_function and not is_inner else None


def exists(name: str) -> bool:
    """Return whether the package has a function or template of this recorded name."""
    file, _, function = name.partition(" ")
    path = PACKAGE / file
    if not path.exists():
        return False
    return not function or (file, function) in _places(path)


@cache
def _places(path: Path) -> set[tuple[str, str] | None]:
    codes = [compile(path.read_text(), path, "exec")]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return set(map(_place, codes))


class SmallApp:
    """An app with two plain tasks and an empty database."""

    def __init__(self, url: str) -> None:
        self.app = Flask("paths")
        self.app.config.update(SQLALCHEMY_DATABASE_URI=url, CRONJOBS_URL_PREFIX="/jobs")
        self.app.config.update(TESTING=True, SECRET_KEY="paths")
        self.db = SQLAlchemy(self.app)
        jobs = CronJobs(self.app, authorize=lambda access: True)

        @jobs.task
        def greet(name): ...

        @jobs.task
        def tidy(): ...

        self.greet: Any = greet
        make_tables(self.app, self.db)

    @property
    def state(self) -> State:
        """The extension's state for the app."""
        return state_of(self.app)

    def close(self) -> None:
        """Close the connections to the database."""
        with self.app.app_context():
            self.db.engine.dispose()

    def enqueue(self, tracer: Tracer) -> None:
        """Trace ``task.enqueue()`` up to its INSERT."""
        # This is as if nothing had been enqueued for some seconds, so that it checks whom to wake.
        self.state.waking.block_for(0.0)

        def see(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
            if "INSERT INTO job_runs" in statement:
                tracer.stop()

        with self.app.app_context():
            event.listen(self.db.engine, "before_cursor_execute", see)
            with tracer.tracing():
                self.greet.enqueue(name="Ada")
            event.remove(self.db.engine, "before_cursor_execute", see)
            self.db.session.commit()

    def tick(self, tracer: Tracer) -> None:
        """Trace ``flask jobs tick`` with one trivial run."""
        with self.app.app_context():
            run_id = self.greet.using(commit=True).enqueue(name="Ada").id
        self._command(tracer, "tick")
        self._expect(run_id, "succeeded")

    def page(self, tracer: Tracer) -> None:
        """Trace ``GET /jobs/``, which shows a tick and a run of half a minute ago."""
        rows = Rows(self.state.engine)
        rows.tick(age=30)
        rows.run("succeeded", age=30, job_type="greet")
        with tracer.tracing():
            answer = self.app.test_client().get("/jobs/")
        assert answer.status_code == 200, answer.text

    def retry(self, tracer: Tracer) -> None:
        """Trace ``flask jobs admin retry --status dead --yes`` with one dead run."""
        run_id = Rows(self.state.engine).run("dead", job_type="greet", payload={"name": "Ada"})
        self._command(tracer, "admin", "retry", "--status", "dead", "--yes")
        self._expect(run_id, "queued")

    def _command(self, tracer: Tracer, *arguments: str) -> None:
        runner = self.app.test_cli_runner()
        with tracer.tracing():
            result = runner.invoke(args=["jobs", *arguments])
        assert result.exit_code == 0, result.output

    def _expect(self, run_id: int, status: str) -> None:
        with self.app.app_context():
            stored = self.db.session.scalar(select(JobRun.status).where(JobRun.id == run_id))
        assert stored == status


CALLS: dict[str, Callable[[SmallApp, Tracer], None]] = {
    "enqueue": SmallApp.enqueue,
    "tick": SmallApp.tick,
    "page": SmallApp.page,
    "retry": SmallApp.retry,
}


def walk_of(call: str, url: str) -> Walk:
    """Return the path of a call on a new app, with the empty database at *url*.

    It is the shortest of three: on a busy machine a tick may take longer than a second, and then
    its keeper also does what it does each second.
    """
    small = SmallApp(url)
    try:
        CALLS[call](small, Tracer())
        return min((_walk_again(call, small) for _ in range(3)), key=lambda walk: walk.size)
    finally:
        small.close()


def _walk_again(call: str, small: SmallApp) -> Walk:
    tracer = Tracer()
    CALLS[call](small, tracer)
    return tracer.walk


def written(call: str, database: str) -> set[str]:
    """Return the functions of a call's path, as they were last recorded."""
    lines = (FOLDER / f"{call}.txt").read_text().splitlines()
    return {line.removesuffix(f" [{database}]") for line in lines} - {
        line for line in lines if line.endswith("]")
    }


def write(call: str, walks: dict[str, Walk]) -> None:
    """Record the path of a call; what only one database passes is marked with its name."""
    FOLDER.mkdir(exist_ok=True)
    names = {database: walk.names for database, walk in walks.items()}
    everywhere = set.intersection(*names.values())
    lines = [*everywhere]
    for database, some in names.items():
        lines += [f"{name} [{database}]" for name in some - everywhere]
    (FOLDER / f"{call}.txt").write_text("\n".join(sorted(lines)) + "\n")


def lines_of(walk: Walk) -> Iterator[str]:
    """Yield a line for each step, indented by its depth."""
    for step in walk.steps:
        thread = "" if step.thread == "MainThread" else f"  ({step.thread})"
        yield f"{'  ' * step.depth}{step.function or 'template'}  {step.file}{thread}"


@contextmanager
def empty_databases() -> Generator[Callable[[str], str]]:
    """Yield a function that creates an empty database of a kind, and returns its URL."""
    with tempfile.TemporaryDirectory() as folder, running_server("fsync = off\n") as server:
        numbers = iter(range(1000))

        def made(kind: str) -> str:
            if kind == "postgresql":
                return server.create_database()
            return f"sqlite:///{folder}/{next(numbers)}.sqlite"

        yield made


def main() -> None:
    """Print paths, or record them."""
    parser = argparse.ArgumentParser("python -m tests.repository.paths", description=__doc__)
    parser.add_argument("calls", nargs="*", choices=[*CALLS, []], metavar="CALL")
    parser.add_argument("--database", choices=DATABASES, default="sqlite", help="of what is shown")
    parser.add_argument("--write", action="store_true", help="write the paths of all calls down")
    args = parser.parse_args()
    with empty_databases() as database_of:
        for call in args.calls or CALLS:
            walks = {database: walk_of(call, database_of(database)) for database in DATABASES}
            for database, walk in walks.items():
                print(f"{call} on {database}: {walk.size}")
            if args.write:
                write(call, walks)
            elif args.calls:
                print(*lines_of(walks[args.database]), sep="\n")


if __name__ == "__main__":
    main()
