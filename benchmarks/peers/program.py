"""The verbs of each contestant's program. It uses only the standard library.

The benchmark calls ``python -m benchmarks.peers.programs.NAME VERB``, with the rest in the
environment. Graphile Worker's program, in JavaScript, follows the same protocol.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from .calls import Calls

#: How many jobs one call enqueues in bulk.
CHUNK = 1_000


class Program:
    """A contestant. Subclasses define the verbs; each verb is one process.

    :ivar url: the database, as ``postgresql://…``, or the path of a SQLite file.
    :ivar jobs: how many jobs there are; each carries its number, from 0.
    :ivar option: what the contestant's variants differ in.
    """

    def __init__(self) -> None:
        self.url = os.environ["PEERS_URL"]
        self.jobs = int(os.environ["PEERS_JOBS"])
        self.option = os.environ["PEERS_OPTION"]

    @cached_property
    def calls(self) -> Calls:
        """Return the notes of this process; handlers call ``calls.note(number)``."""
        return calls_of_environment()

    def prepare(self) -> None:
        """Create the tables in an empty database."""
        raise NotImplementedError

    def load(self) -> None:
        """Enqueue all jobs, `CHUNK` with each call, each call with its own commit."""
        raise NotImplementedError

    def work(self) -> None:
        """Run all jobs, and return when none is left and all outcomes are recorded."""
        raise NotImplementedError

    def enqueue(self) -> None:
        """Enqueue all jobs one by one, each with its own commit."""
        raise NotImplementedError

    def listen(self) -> None:
        """Run a resident worker until a signal ends it."""
        raise NotImplementedError

    def chunks(self) -> Iterator[range]:
        """Yield the numbers of the jobs, as many at a time as one call enqueues."""
        for start in range(0, self.jobs, CHUNK):
            yield range(start, min(start + CHUNK, self.jobs))

    def singly(self) -> Iterator[int]:
        """Yield the numbers of the jobs, to enqueue them one by one.

        With ``PEERS_PAUSE``, wait about this many seconds before each, and note the time.
        """
        pause = float(os.environ.get("PEERS_PAUSE", 0))
        for number in range(self.jobs):
            if pause:
                time.sleep(pause * random.uniform(0.5, 1.5))
                self.calls.note(number)
            yield number

    @contextmanager
    def timed(self) -> Generator[None]:
        """Print how long the block takes, for the benchmark to read."""
        began = time.perf_counter()
        yield
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)

    def main(self) -> None:
        """Run the verb that the command line names."""
        getattr(self, sys.argv[1])()


def calls_of_environment() -> Calls:
    """Return the notes of this process, in the folder that the benchmark has set."""
    return Calls(Path(os.environ["PEERS_CALLS"]), int(os.environ["PEERS_JOBS"]))
