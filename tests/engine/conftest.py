"""``flask jobs work`` in threads of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from flask import Flask

from flask_cronjobs.engine import resident as resident_module
from flask_cronjobs.engine.resident import serve
from flask_cronjobs.engine.tick import TickOptions
from flask_cronjobs.engine.worker.keeper import Keeper
from flask_cronjobs.jobs.state import state_of
from tests.process.support import PATIENCE, wait_until

if TYPE_CHECKING:
    from flask_cronjobs.jobs.state import State


def keepers() -> list[Keeper]:
    """The keepers of the workers in this process."""
    return [each for each in threading.enumerate() if isinstance(each, Keeper)]


def stop_keepers() -> None:
    """Let all workers in this process stop."""
    for keeper in keepers():
        keeper.stop()


class Resident:
    """``flask jobs work`` in a thread.

    :ivar error: what it ended with.
    """

    def __init__(self, state: State) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(state,))
        self._thread.start()

    def _run(self, state: State) -> None:
        try:
            serve(state, TickOptions(workers=1))
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Stop it, and wait for its end."""

        def has_ended() -> bool:
            stop_keepers()  # Again and again: one that has just been started has no keeper yet.
            return not self._thread.is_alive()

        wait_until(has_ended)

    def join(self) -> None:
        """Wait for its end."""
        wait_until(lambda: not self._thread.is_alive())


@pytest.fixture
def resident(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Resident]]:
    """Starts resident workers, which end with the test, and with their last minute."""
    monkeypatch.setattr(resident_module, "END_WITHIN", PATIENCE)
    started: list[Resident] = []

    def start() -> Resident:
        started.append(Resident(state_of(app)))
        return started[-1]

    yield start
    for each in started:
        each.stop()
