"""The nemesis of a soak: random faults, each written to the timeline."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from tests.brokers import Broker
from tests.soak import timeline
from tests.soak.app import LEASE
from tests.soak.databases import DatabaseFaults, Hold
from tests.soak.processes import Process, Processes
from tests.soak.timeline import Fault


class Nemesis(threading.Thread):
    """Harms the processes of the hosts, and their database.

    :param broker: the broker of the executor that executes the runs, if there is one.
    """

    def __init__(
        self,
        processes: Processes,
        database: DatabaseFaults,
        seed: int,
        broker: Broker | None = None,
    ) -> None:
        super().__init__(name="nemesis", daemon=True)
        self.error: BaseException | None = None
        self._processes = processes
        self._database = database
        self._random = random.Random(f"{seed}:nemesis")
        self._thaws = random.Random(f"{seed}:thaws")
        self._broker = broker
        self._stopped = threading.Event()
        self._holds = Holds()
        database.hold = self._holds.add

    def stop(self) -> None:
        """Stop the faults, and end those that last."""
        self._stopped.set()
        self._holds.end_all()  # First, since the nemesis itself may wait for one of them.
        self.join()
        self._holds.end_all()

    def run(self) -> None:
        """Cause faults until stopped."""
        faults: list[tuple[str, Callable[[], None], int]] = [
            ("kill", self._kill, 6),
            ("kill_parent", self._kill_parent, 3),
            ("freeze", self._freeze, 4),
            ("terminate", self._terminate, 4),
            *self._database.faults(),
            *([("broker", self._renew_broker, 2)] if self._broker is not None else []),
        ]
        weights = [weight for _, _, weight in faults]
        try:
            while not self._stopped.wait(self._random.uniform(0.3, 1.5)):
                self._random.choices([fault for _, fault, _ in faults], weights)[0]()
        except BaseException as error:
            self.error = error

    def thaw_later(self, process: Process) -> None:
        """Let a stopped process continue after a while. This may be called again and again."""
        if process.pid in self._holds:
            return
        fault = Fault("freezes", time.monotonic(), 0, process.pid, process.group, delays=True)
        seconds = self._thaws.uniform(0.2, 2.5 * LEASE)
        self._holds.add(
            Hold(fault, seconds, lambda: _signal(process.pid, signal.SIGCONT)), key=process.pid
        )

    def _kill(self) -> None:
        self._send(signal.SIGKILL, "kills")

    def _terminate(self) -> None:
        self._send(signal.SIGTERM, "terms")

    def _kill_parent(self) -> None:
        """Kill the parent of a pool of workers."""
        living = self._processes.living()
        parents = {process.parent for process in living}
        self._send(signal.SIGKILL, "parents killed", [p for p in living if p.pid in parents])

    def _freeze(self) -> None:
        if process := self._victim():
            self.thaw_later(process)
            _signal(process.pid, signal.SIGSTOP)

    def _renew_broker(self) -> None:
        """Kill the broker and lose its messages; restart it at once or after a while."""
        assert self._broker is not None
        began = time.monotonic()
        self._broker.kill()
        self._stopped.wait(self._random.choice([0, 1, 4]))
        self._broker.start()
        timeline.add(Fault("brokers lost", began, time.monotonic()))

    def _victim(self) -> Process | None:
        living = self._processes.living()
        return self._random.choice(living) if living else None

    def _send(
        self, number: signal.Signals, what: str, victims: list[Process] | None = None
    ) -> None:
        victims = self._processes.living() if victims is None else victims
        if not victims:
            return
        victim = self._random.choice(victims)
        if _signal(victim.pid, number):
            timeline.note(what, pid=victim.pid, group=victim.group)


class Holds:
    """The faults that last for a while; a timer ends each, whatever the nemesis waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[object, tuple[threading.Timer, Hold]] = {}

    def add(self, hold: Hold, key: object = None) -> None:
        """End *hold* after its time.

        :param key: what is held; if it is held already, do nothing.
        """
        key = hold if key is None else key
        with self._lock:
            if key in self._held:
                return
            timer = threading.Timer(hold.seconds, self._end, [key])
            timer.daemon = True
            self._held[key] = (timer, hold)
            timer.start()

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def end_all(self) -> None:
        """End all of them now."""
        for key in list(self._held):
            self._end(key)

    def _end(self, key: object) -> None:
        with self._lock:
            timer, hold = self._held.get(key, (None, None))
            if timer is None or hold is None:
                return
            hold.let_go()
            timeline.add(replace(hold.fault, until=time.monotonic()))
            timer.cancel()
            del self._held[key]


def _signal(pid: int, number: signal.Signals) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
