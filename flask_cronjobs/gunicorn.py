"""Hooks for gunicorn that run ``flask jobs work`` beside the web workers.

Use it as gunicorn's configuration (``gunicorn --config python:flask_cronjobs.gunicorn shop:app``)
or import its hooks into your own::

    from flask_cronjobs.gunicorn import *

If your configuration has `when_ready`, `on_reload` or `on_exit`, both hooks are called. If it has
`nworkers_changed`, call ours from yours, since ours combines the other hooks.

The command uses the app that gunicorn serves, or ``FLASK_APP`` if it is set. Set its options in the
environment, such as ``FLASK_JOBS_WORK_MAX_MEMORY=512``.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from .core.background import start_worker
from .core.worker.process_signals import STOP_FROM_PARENT

__all__ = ["nworkers_changed", "on_exit", "on_reload", "when_ready"]

#: Seconds between two checks of whether the process has ended. We cannot wait for it, since
#: gunicorn collects the exit status of all its children.
_CHECK_SECONDS = 0.5
#: The first and the longest pause in seconds before the process is started again. After a process
#: that ran for longer than the longest pause, the first one applies again.
_PAUSE_SECONDS = 1.0, 60.0


def nworkers_changed(server: Any, number: object, before: object) -> None:
    """Combine our hooks with the hooks of the same names in the user's configuration.

    gunicorn calls this hook before all others, whenever it has read its configuration.
    """
    for hook in (when_ready, on_reload, on_exit):
        user_hook = getattr(server.cfg, hook.__name__)
        if user_hook is not hook and not isinstance(user_hook, _Both):
            server.cfg.set(hook.__name__, _Both(user_hook, hook))


def when_ready(server: Any) -> None:
    """Start the process when gunicorn is about to start its workers.

    If hooks of the configuration also call this, there is still only one process.
    """
    with _lock:
        if any(keeper.has(server.cfg) for keeper in _keepers):
            return
        for keeper in _keepers:
            keeper.stop()
        _keepers.append(_Keeper(server))


def on_reload(server: Any) -> None:
    """When gunicorn gets SIGHUP, start a process with the new code while the old process ends."""
    when_ready(server)


def on_exit(server: Any) -> None:
    """End the process after gunicorn's last worker, and wait until its handlers have ended."""
    for keeper in _keepers:
        keeper.stop()
    for keeper in _keepers:
        keeper.join()


class _Both:
    """A hook of the user's configuration, and ours."""

    def __init__(
        self, user_hook: Callable[[Any], object], our_hook: Callable[[Any], object]
    ) -> None:
        self._user_hook, self._our_hook = user_hook, our_hook

    def __call__(self, server: Any) -> None:
        try:
            self._user_hook(server)
        finally:
            self._our_hook(server)


class _Keeper(threading.Thread):
    """Keeps one process running until `stop`.

    The first process is started in gunicorn's own thread, before gunicorn forks its workers. A
    worker that is forked at the same time would delay the start of the process until that worker
    ends.
    """

    def __init__(self, server: Any) -> None:
        super().__init__(name="cronjobs-gunicorn", daemon=True)
        self._server, self._cfg = server, server.cfg
        self._stopping = threading.Event()
        self._process = self._start_process()
        self.start()

    def has(self, cfg: object) -> bool:
        """Return whether it keeps a process running for this configuration."""
        return self._cfg is cfg and not self._stopping.is_set()

    def stop(self) -> None:
        """End the process soon."""
        self._stopping.set()

    def run(self) -> None:
        """Start the process again, after a pause, whenever it has ended."""
        pause, longest = _PAUSE_SECONDS
        began = time.monotonic()
        while not self._has_stopped():
            if time.monotonic() - began > longest:
                pause = _PAUSE_SECONDS[0]
            message = "flask jobs work has ended, and is started again in %g s"
            self._server.log.error(message, pause)
            if self._stopping.wait(pause):
                return
            pause, began = min(2 * pause, longest), time.monotonic()
            self._process = self._start_process()

    def _has_stopped(self) -> bool:
        """Wait until the process has ended; return whether `stop` was called."""
        process = self._process
        while process is not None and process.poll() is None:
            if self._is_reloaded():
                when_ready(self._server)
            if self._stopping.wait(_CHECK_SECONDS):
                # A service manager may send SIGTERM to all processes. A second one would end the
                # command at once.
                process.send_signal(STOP_FROM_PARENT)
                process.wait()
                self._server.log.info("Stopped flask jobs work (pid: %s)", process.pid)
        return self._stopping.is_set()

    def _is_reloaded(self) -> bool:
        """Return whether gunicorn has been reloaded with a configuration that lacks `on_reload`."""
        cfg = self._server.cfg
        has_hook = cfg.on_reload is on_reload or isinstance(cfg.on_reload, _Both)
        return cfg is not self._cfg and not has_hook and not self._stopping.is_set()

    def _start_process(self) -> subprocess.Popen[bytes] | None:
        log, cfg = self._server.log, self._server.cfg
        app = os.environ.get("FLASK_APP") or getattr(self._server.app, "app_uri", None)
        paths = [*(cfg.pythonpath or "").split(","), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        try:
            process = start_worker(app, env, "gunicorn", cfg.uid, cfg.gid)
        except OSError as error:
            log.error("flask jobs work could not be started: %s", error)
            return None
        log.info("Started flask jobs work with pid: %s", process.pid)
        return process


_keepers: list[_Keeper] = []
_lock = threading.Lock()
