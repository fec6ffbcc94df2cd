"""A real PgBouncer for the tests, in transaction mode."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from tests.postgres import free_port, user_of_servers

CONFIG = """
[databases]
* = host={host} port={server} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
"""
#: How long PgBouncer may take to start on a busy machine, in seconds.
PATIENCE = 60.0


@contextmanager
def running_pgbouncer(program: str, server_url: str) -> Generator[str]:
    """Run a PgBouncer in front of a database; yield the database's URL through it."""
    url = make_url(server_url)
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="cronjobs-pgbouncer-"))
    folder.chmod(0o755)
    config = folder / "pgbouncer.ini"
    config.write_text(
        CONFIG.format(host=url.host, server=url.port or 5432, user=url.username, port=port)
    )
    # PgBouncer refuses to run as root.
    command, user = [program, "-q", str(config)], user_of_servers()
    via = url.set(host="127.0.0.1", port=port)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/", **user) as process:
        try:
            _wait_for(via.set(drivername="postgresql").render_as_string(False), process)
            yield via.render_as_string(False)
        finally:
            process.terminate()
            shutil.rmtree(folder)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
