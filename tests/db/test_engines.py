"""A connection apart from the app's pool: what an interruption while it is opened leaves."""

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
    """Leave what is in a cycle where it is."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt when the timer is over, if a connection is being opened then."""

    def interrupt(_signal: int, frame: FrameType | None) -> Any:
        while frame is not None:
            if frame.f_code is connect_apart.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


def seconds_to_connect(engine: Engine) -> float:
    """How long it takes, by the fastest of ten: the machine may have paused in another."""
    seconds: list[float] = []
    for _ in range(10):
        began = time.perf_counter()
        connect_apart(engine).close()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # The drivers tell that they close it.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function _collection_gced")  # SQLAlchemy
def test_interruption_leaves_no_connection(engine: Engine, database_url: str) -> None:
    connect_apart(engine).close()  # The first connection of an engine asks the server more.
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
