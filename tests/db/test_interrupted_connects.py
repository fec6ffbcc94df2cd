"""An interruption while a connection outside of the app's pool is opened leaks nothing."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Engine

from flask_cronjobs.db.engines import connect_apart
from tests.fuzz.inspection import inspector

#: How many moments are tried.
MOMENTS = 20


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Do not collect cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt when the timer ends, if a connection is then being opened."""

    def interrupt(_signal: int, frame: FrameType | None) -> Any:
        while frame is not None:
            if frame.f_code is connect_apart.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


def seconds_to_connect(engine: Engine) -> float:
    """Return the time of the fastest of ten connects: the machine may pause during others."""
    seconds: list[float] = []
    for _ in range(10):
        began = time.perf_counter()
        connect_apart(engine).close()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # The drivers warn that they close it.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function _collection_gced")  # SQLAlchemy
def test_interruption_leaves_no_connection(engine: Engine, database_url: str) -> None:
    connect_apart(engine).close()  # The first connection of an engine asks the server for more.
    span = seconds_to_connect(engine)
    interrupted = 0
    for moment in range(1, MOMENTS + 1):
        signal.setitimer(signal.ITIMER_REAL, span * moment / MOMENTS)
        try:
            connect_apart(engine).close()
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert list(inspector(database_url).connections()) == []
    assert interrupted > 0
