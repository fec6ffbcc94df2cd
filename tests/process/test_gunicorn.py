"""``flask jobs work`` beside gunicorn, started by our hooks."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest

from flask_cronjobs import __version__
from tests.marks import on_sqlite
from tests.process.support import ROOT, Site, Tick, wait_until

APP = "tests.process.jobs_app:create_app()"
HOOKS = "python:flask_cronjobs.gunicorn"
STARTED = r"Started flask jobs work with pid: (\d+)"


def start(site: Site, *args: str, app: str = APP, config: str = HOOKS) -> Tick:
    options = ["--config", config, "--bind", "127.0.0.1:0", "--graceful-timeout", "5"]
    return site.start_python("gunicorn", *options, *args, app)


def started(server: Tick, times: int = 1) -> int:
    """Return the id of the process that was started as number *times*."""
    wait_until(lambda: len(re.findall(STARTED, server.errors)) >= times)
    return int(re.findall(STARTED, server.errors)[times - 1])


def is_there(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True).stdout
    return state[:1] not in (b"", b"Z")


def run_one(site: Site) -> int:
    """Let a run end; return the id of the process that executed it."""
    run = site.enqueue("note")
    site.wait_for_status(run, "succeeded")
    return site.trace("note")[-1]["pid"]


@pytest.mark.parametrize("more", [[], ["--preload", "--workers", "2"]], ids=["plain", "preload"])
def test_the_worker_comes_and_goes_with_gunicorn(site: Site, more: list[str]) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 60
    server = start(site, *more)
    run_one(site)
    (tick,) = site.query("SELECT version FROM job_ticks")
    assert tick.version == f"{__version__} gunicorn"
    pid = started(server)
    os.kill(pid, signal.SIGKILL)
    again = started(server, 2)
    assert "flask jobs work has ended, and is started again in 1 s" in server.errors
    run_one(site)
    at_work = site.enqueue("wait_for", {"path": str(site.gate)})
    site.wait_for("begun")
    server.send(signal.SIGTERM)
    site.gate.touch()
    assert server.wait().returncode == 0
    assert site.run(at_work).status == "succeeded"
    assert f"Stopped flask jobs work (pid: {again})" in server.errors
    assert not is_there(again)
    assert re.findall(STARTED, server.errors) == [str(pid), str(again)]


@on_sqlite
def test_the_worker_ends_in_order_when_gunicorn_is_killed(site: Site) -> None:
    site.config["CRONJOBS_SHUTDOWN_GRACE"] = 60
    server = start(site)
    run_one(site)
    at_work = site.enqueue("wait_for", {"path": str(site.gate)})
    site.wait_for("begun")
    server.send(signal.SIGKILL)
    wait_until(lambda: f"The parent process {server.pid} has ended" in server.errors)
    site.gate.touch()
    site.wait_for_status(at_work, "succeeded")
    pid = started(server)
    wait_until(lambda: not is_there(pid))


@on_sqlite
def test_gunicorn_gives_the_worker_its_folder_and_its_environment(site: Site) -> None:
    """The hooks may be a part of a larger configuration. A reload replaces the worker."""
    (site.folder / "shop.py").write_text(
        "import os\nassert os.environ['SHOP'] == 'open'\n"
        "from tests.process.jobs_app import create_app\ndef make(): return create_app()\n"
    )
    own = site.folder / "own.py"
    own.write_text(
        "from flask_cronjobs.gunicorn import on_exit, on_reload, when_ready as start\n"
        "def when_ready(server):\n    server.log.info('our own')\n    start(server)\n"
    )
    site.env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    limit = ["--env", "SHOP=open", "--env", "FLASK_JOBS_WORK_MAX_RUNS=1"]
    server = start(site, "--chdir", str(site.folder), *limit, app="shop:make()", config=str(own))
    first = run_one(site)
    assert run_one(site) != first  # The worker ended at its limit.
    assert "our own" in server.errors
    pid = started(server)
    server.send(signal.SIGHUP)
    started(server, 2)
    wait_until(lambda: not is_there(pid))
    run_one(site)
    assert "has ended" not in server.errors


@on_sqlite
@pytest.mark.parametrize(
    "hooks",
    [
        "from flask_cronjobs.gunicorn import *\n"
        "def when_ready(server): server.log.info('our own')\n"
        "def on_reload(server): server.log.info('our own')\n"
        "def on_exit(server): server.log.info('our own')\n",
        "from flask_cronjobs.gunicorn import when_ready\n",
    ],
    ids=["hooks of the same names", "half of ours"],
)
def test_no_configuration_leaves_the_worker_out_or_its_code_old(site: Site, hooks: str) -> None:
    own = site.folder / "own.py"
    own.write_text(hooks)
    server = start(site, config=str(own))
    pid = started(server)
    run_one(site)
    server.send(signal.SIGHUP)
    again = started(server, 2)
    wait_until(lambda: not is_there(pid))
    run_one(site)
    server.send(signal.SIGTERM)
    assert server.wait().returncode == 0
    wait_until(lambda: not is_there(again))
    assert server.errors.count("our own") == 3 * hooks.count("import *")
    assert len(re.findall(STARTED, server.errors)) == 2
