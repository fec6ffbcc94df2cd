"""The quickstart, word for word: from a wheel, in an empty environment, to a green page."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from .pages import ROOT, blocks, named, without_times

PAGE = named("quickstart.md")
#: The blocks, by their order; the last one is about the example app.
APP, LATER, *_ = blocks(PAGE, "python")
SHELL = blocks(PAGE, "sh")[:-1]
SERVER = "flask run --debug\n"
SHOWN = blocks(PAGE, "text")
SCHEDULE = "*/10 * * * *"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=200)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Reader:
    """A reader who types what the page shows, in an empty folder.

    The port differs, since 5000 may be taken here, and so does the place where pip finds the
    package. The minute of the schedule differs too, since a slot that comes due between two ticks
    would add a line.
    """

    def __init__(self, folder: Path, wheel: Path, port: int) -> None:
        constraint = folder.parent / "constraint.txt"
        constraint.write_text(f"Flask-CronJobs @ {wheel.as_uri()}\n")
        self.folder, self.port = folder, port
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        self.environment = {
            **environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(constraint),
            "FLASK_RUN_PORT": str(port),
        }

    def save(self, *texts: str) -> None:
        """Save ``app.py``."""
        assert SCHEDULE in texts[0]
        far = datetime.now(timezone.utc) + timedelta(minutes=30)
        text = "\n\n".join(texts).replace(SCHEDULE, f"{far.minute} * * * *")
        (self.folder / "app.py").write_text(text)

    def type(self, block: str) -> str:
        """Type *block* in a shell with the environment activated; return what it prints."""
        script = f"set -e\n{self._activate}{block.replace(':5000', f':{self.port}')}"
        result = subprocess.run(
            ["sh", "-c", script],
            cwd=self.folder,
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=250,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the server, as in a terminal of its own, and wait until it answers."""
        with (self.folder / "server.log").open("wb") as log:
            server = subprocess.Popen(
                ["sh", "-c", f"{self._activate}exec {SERVER}"],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for _ in range(600):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return server
            time.sleep(0.1)
        raise AssertionError((self.folder / "server.log").read_text())

    @property
    def _activate(self) -> str:
        return ". .venv/bin/activate\n" if (self.folder / ".venv").exists() else ""


@pytest.fixture
def reader(tmp_path: Path, wheel: Path, port: int) -> Reader:
    folder = tmp_path / "shop"
    folder.mkdir()
    return Reader(folder, wheel, port)


@pytest.mark.slow
def test_quickstart_leads_to_a_green_page(reader: Reader) -> None:
    install, tables, first, second, dry, server, sign_up, crontab = (b.text for b in SHELL)
    reader.type(install)
    reader.save(APP.text)
    assert "job_runs" in reader.type(tables)
    assert reader.type(first) == ""
    output = reader.type(second).partition("\n")[2]  # The first line is that of `admin run`.
    assert without_times(output) == without_times(SHOWN[0].text)
    assert "next: " in reader.type(dry)
    reader.save(APP.text, LATER.text)
    assert server == SERVER
    running = reader.serve()
    try:
        assert without_times(reader.type(sign_up)) == without_times(SHOWN[1].text)
        page = f"http://127.0.0.1:{reader.port}/jobs/"
        with urllib.request.urlopen(page, timeout=10) as answer:
            html = answer.read().decode()
        assert page.replace(str(reader.port), "5000") in PAGE.read_text()
        assert "<title>All is well" in html
        assert "refresh_prices" in html
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(20)
    assert f"cd {reader.folder}" in reader.type(crontab)
