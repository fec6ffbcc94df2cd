"""The environments of the peers; only this module has the compared versions.

Each environment is made once, with pip or npm, in ``benchmarks/.environments``, and made again when
its requirements change. Ours is the Python that runs the benchmark, with the checkout.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".environments"

#: The requirements of each environment for Python.
PYTHON: dict[str, list[str]] = {
    "pgqueuer": ["pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"],
    "procrastinate": ["procrastinate==3.10.0", "psycopg[binary]==3.3.9"],
    "chancy": ["chancy==0.26.0", "psycopg[binary]==3.3.9"],
    "huey": ["huey==3.5.4"],
    "django_tasks_db": [
        "django-tasks-db==0.13.0",
        "django-tasks==0.12.0",
        "django==5.2.19",
        "psycopg[binary]==3.3.9",
    ],
    "apscheduler": ["apscheduler==3.11.3", "sqlalchemy==2.1.9", "psycopg[binary]==3.3.9"],
}

#: The requirements of each environment for Node.
NODE: dict[str, list[str]] = {"graphile": ["graphile-worker@0.17.3"]}

#: The environment that runs the benchmark.
OURS = "ours"


def interpreter(name: str) -> list[str]:
    """Return the command that starts a program in the environment *name*, made if need be."""
    if name == OURS:
        return [sys.executable]
    folder = FOLDER / name
    packages = "\n".join(PYTHON.get(name, []) + NODE.get(name, []))
    stamp = folder / "made"
    if not stamp.exists() or stamp.read_text() != packages:
        print(f"Making the environment of {name}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _make(name, folder)
        stamp.write_text(packages)
    return ["node"] if name in NODE else [str(folder / "bin/python")]


@cache
def is_available(name: str) -> bool:
    """Return whether the environment *name* exists or can be made; otherwise print why not."""
    try:
        interpreter(name)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
        return False
    return True


def versions(name: str) -> str:
    """Return the compared versions, as ``pgqueuer 1.6.0, asyncpg 0.32.0, …``."""
    packages = PYTHON.get(name, []) + NODE.get(name, [])
    return ", ".join(package.replace("==", " ").replace("@", " ") for package in packages)


def _make(name: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    if name in NODE:
        command = ["npm", "install", "--silent", "--prefix", str(folder), *NODE[name]]
    else:
        venv.create(folder, with_pip=True)
        command = [str(folder / "bin/python"), "-m", "pip", "install", "-qq", *PYTHON[name]]
    subprocess.run(command, check=True)
