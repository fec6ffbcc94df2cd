"""Real brokers for the tests of engines: Redis and RabbitMQ."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.postgres import free_port

#: How long a broker may take to start on a busy machine, in seconds.
PATIENCE = 120.0


class Broker:
    """A broker without persistence that a test starts, kills and starts again.

    :ivar url: the URL that Celery connects to.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        url: str,
        folder: Path,
        env: dict[str, str],
        answers: Callable[[int], bool],
    ) -> None:
        self.url = url
        self._command = command
        self._port = port
        self._folder = folder
        self._env = env
        self._answers = answers
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker, and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + PATIENCE
        while not self._answers(self._port):
            if self._process.poll() is not None or time.monotonic() > until:
                log_text = (self._folder / "log").read_text(errors="replace")
                raise RuntimeError(f"{self._command[0]} did not start: {log_text[-2000:]}")
            time.sleep(0.05)

    def renew(self) -> None:
        """Restart the broker empty, or start it if it was killed."""
        self.kill()
        self.start()

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Freeze the broker inside the block: it accepts connections, but answers nothing."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the broker; everything that it holds is lost."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        for path in self._folder.iterdir():
            if path.name in ("data", "dump.rdb"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def find_program(name: str, package: str) -> str | None:
    """Return the path of a program, installed with apt-get if possible; None if there is none."""
    path = f"{os.environ['PATH']}:/usr/sbin:/usr/lib/rabbitmq/bin"
    if shutil.which(name, path=path) is None and os.geteuid() == 0:
        for command in (["update"], ["install", "--yes", package]):
            subprocess.run(["apt-get", "--quiet", *command], capture_output=True)
    return shutil.which(name, path=path)


@contextmanager
def running_redis() -> Generator[Broker | None]:
    """Run a Redis server; yield None if there is none and none can be installed."""
    program = find_program("redis-server", "redis-server")
    if program is None:
        yield None
        return
    with _folder("redis") as folder:
        port = free_port()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        broker = Broker(command, port, f"redis://127.0.0.1:{port}/0", folder, {}, _redis_answers)
        yield from _run(broker)


@contextmanager
def running_rabbitmq() -> Generator[Broker | None]:
    """Run a RabbitMQ server; yield None if there is none and none can be installed."""
    installed = find_program("rabbitmq-server", "rabbitmq-server")
    # Debian's own command changes the user, and always starts the machine's default node.
    program = shutil.which("/usr/lib/rabbitmq/bin/rabbitmq-server") or installed
    if program is None:
        yield None
        return
    with _folder("rabbitmq") as folder:
        port, name = free_port(), f"cronjobs{os.getpid()}@localhost"
        env = {
            "HOME": str(folder),
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        }
        url = f"amqp://guest:guest@127.0.0.1:{port}//"
        yield from _run(Broker([program], port, url, folder, env, _rabbitmq_answers))


def _run(broker: Broker) -> Generator[Broker]:
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@contextmanager
def _folder(name: str) -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"cronjobs-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _redis_answers(port: int) -> bool:
    return _answer(port, b"PING\r\n").startswith(b"+PONG")


def _rabbitmq_answers(port: int) -> bool:
    # RabbitMQ greets a client with the first frame of a connection.
    return _answer(port, b"AMQP\x00\x00\x09\x01").startswith(b"\x01")


def _answer(port: int, request: bytes) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            connection.sendall(request)
            return connection.recv(64)
    except OSError:
        return b""
