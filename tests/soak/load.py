"""The load of a soak: enqueues, adds definitions, cancels and retries, and remembers it all."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from flask import Flask
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from flask_cronjobs import BatchClosed, CronJobsError
from flask_cronjobs.errors import KeyConflict
from tests.features import parts
from tests.soak.app import LEASE, ROLLED_BACK, Entry, db, jobs
from tests.soak.history import Watched, moment

#: How many runs may wait before the load lets the hosts catch up.
BACKLOG = 150
#: How many definitions each load adds in all.
DEFINITIONS = 20
#: How long it tries to close the batches that faults have left open, in seconds.
CLOSING = 60.0
#: The tasks to enqueue, each as often as its share.
KINDS = 3 * ["plain", "slow", "effect", "effect", "atomic", "atomic", "one_at_a_time"] + [
    *6 * ["waiting"],
    *("plain", "two_at_a_time", "two_at_a_time", "failing", "failing", "killing", "overlong"),
    *("own_row", "snoozing"),
    *4 * ["in_order"],
    *3 * ["in_steps"],
    *(kind for part in parts("soak") for kind in part.KINDS),
]
#: The payloads of the tasks of features.
OF_FEATURES = {name: make for part in parts("soak") for name, make in part.PAYLOADS.items()}


class Load(threading.Thread):
    """Makes work in *app* until told to stop.

    :param name: begins the names and keys of what it makes.
    """

    def __init__(self, app: Flask, seed: int, name: str) -> None:
        super().__init__(name=f"load {name}", daemon=True)
        self.error: BaseException | None = None
        self.counts: Counter[str] = Counter()
        self.enqueued: set[int] = set()
        self.retried: set[int] = set()
        self.watched: dict[int, Watched] = {}
        self._app = app
        self._prefix = name
        self._random = random.Random(f"{seed}:load:{name}")
        self._open: set[str] = set()
        self._stopped = threading.Event()
        self._number = 0

    def stop(self) -> None:
        """Stop, and wait for the end."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        """Do something again and again until stopped; what the database refuses is dropped."""
        deeds: list[tuple[Callable[[], None], int]] = [
            (self._enqueue, 12),
            (self._enqueue_shared_effect, 2),
            (self._enqueue_at_once, 3),
            (self._enqueue_refused, 1),
            (self._fill_batch, 2),
            (self._fill_batch_in_parts, 1),
            (self._add_definition, 2),
            (self._cancel, 1),
            (self._retry, 1),
        ]
        weights = [weight for _, weight in deeds]
        while not self._stopped.wait(self._random.uniform(0.02, 0.3)):
            (deed, _) = self._random.choices(deeds, weights)[0]
            self._try(deed)
        until = time.monotonic() + CLOSING
        while self._open and time.monotonic() < until:
            self._try(self._close_batches)
            time.sleep(0.2)

    def _try(self, deed: Callable[[], None]) -> None:
        with self._app.app_context():
            try:
                deed()
                self.counts[deed.__name__.strip("_")] += 1
            except (SQLAlchemyError, CronJobsError):
                with suppress(SQLAlchemyError):  # The server may have gone.
                    db.session.rollback()
                self.counts["refused"] += 1
            except BaseException as error:
                self.error = error

    def _enqueue(self) -> None:
        if self._waiting() > BACKLOG:
            return
        number = self._random.randint(1, 8)
        self._commit([self._enqueue_one() for _ in range(number)])

    def _enqueue_at_once(self) -> None:
        if self._waiting() <= BACKLOG:
            self.enqueued.add(self._enqueue_one(commit=True))

    def _enqueue_refused(self) -> None:
        """Have an enqueue refused, and roll back what the app writes next."""
        self._number += 1
        key = f"{self._prefix}-taken-{self._number}"
        self._commit([jobs.enqueue("plain", idempotency_key=key).id])
        with suppress(KeyConflict):
            jobs.enqueue("snoozing", idempotency_key=key, commit=True)
            raise AssertionError(f"a run of another task has the key {key}")
        db.session.add(Entry(run_id=ROLLED_BACK))
        db.session.flush()
        db.session.rollback()

    def _enqueue_one(self, commit: bool = False) -> int:
        choose = self._random
        self._number += 1
        kind = choose.choice(KINDS)
        payloads: dict[str, dict[str, object]] = {
            **{name: make(choose) for name, make in OF_FEATURES.items()},
            "slow": {"steps": choose.randint(1, 20)},
            "waiting": {"steps": choose.randint(1, 20), "key": f"{self._prefix}-w-{self._number}"},
            "effect": {"key": f"{self._prefix}-own-{self._number}"},
            "atomic": {"steps": choose.randint(0, 10)},
            "one_at_a_time": {"key": str(choose.randint(1, 3))},
            # Each load has its own keys, since either of two transactions may commit first.
            "in_order": {"key": f"{self._prefix}-{choose.randint(1, 3)}"},
            "own_row": {"seconds": choose.choice([0.2, 1.0, 1.5 * LEASE])},
        }
        delay = choose.choice([None, None, None, choose.uniform(0, 2)])
        key = choose.choice([None, "plain:1", "plain:2"]) if kind == "plain" else None
        return jobs.enqueue(
            kind,
            payloads.get(kind),
            delay=delay,
            priority=choose.choice([0, 0, 0, 1, -1]),
            idempotency_key=key,
            unique_while="pending" if key else None,
            queue=choose.choice([None, None, None, "handed"]),
            commit=commit,
        ).id

    def _enqueue_shared_effect(self) -> None:
        self._number += 1
        payload = {"key": f"{self._prefix}-shared-{self._number}"}
        self._commit([jobs.enqueue("effect", payload).id for _ in range(3)])

    def _fill_batch(self) -> None:
        """Enqueue some runs in a batch, which is followed by a run of `joining`."""
        if self._waiting() > BACKLOG:
            return
        self._number += 1
        with jobs.batch(f"{self._prefix}-batch-{self._number}", then="joining"):
            ids = [self._enqueue_one() for _ in range(self._random.randint(0, 5))]
        self._commit(ids)

    def _fill_batch_in_parts(self) -> None:
        """Fill a batch in two transactions. If one fails, the batch stays open until the end."""
        if self._waiting() > BACKLOG:
            return
        self._number += 1
        key = f"{self._prefix}-parts-{self._number}"
        self._open.add(key)
        with jobs.batch(key, then="joining"):
            self._commit([self._enqueue_one() for _ in range(self._random.randint(1, 3))])
            ids = [self._enqueue_one() for _ in range(self._random.randint(1, 3))]
        self._commit(ids)
        self._open.discard(key)

    def _close_batches(self) -> None:
        for key in list(self._open):
            with suppress(BatchClosed), jobs.batch(key, then="joining"):
                pass
            db.session.commit()
            self._open.discard(key)

    def _commit(self, ids: list[int]) -> None:
        db.session.commit()
        self.enqueued.update(ids)

    def _add_definition(self) -> None:
        """Add a definition that is already some minutes behind, as if no tick had come."""
        if len(self.watched) >= DEFINITIONS:
            return
        self._number += 1
        name = f"{self._prefix}-churn-{self._number}"
        jobs.add_definition(
            name,
            "scheduled",
            schedule="* * * * *",
            catchup=self._random.choice(["all", "all", "latest", "none"]),
            overlap=self._random.choice(["allow", "skip"]),
        )
        find = text("SELECT id, next_run_at AS at FROM job_definitions WHERE name = :name")
        row = db.session.execute(find, {"name": name}).one()
        owed_since = moment(row.at) - timedelta(minutes=self._random.randint(1, 8))
        moved = db.session.execute(
            text(
                "UPDATE job_definitions SET next_run_at = :since"
                " WHERE id = :id AND next_run_at = :first RETURNING id"
            ),
            {"since": self._instant(owed_since), "id": row.id, "first": row.at},
        ).all()
        # If the commit's answer is lost, the first row tells which slots the definition owed.
        self.watched[row.id] = Watched(row.id, moment(row.at), moment(row.at))
        db.session.commit()
        if moved:
            self.watched[row.id].first = owed_since

    def _cancel(self) -> None:
        rows = self._some("status IN ('queued', 'failed', 'running') AND job_type <> 'effect'")
        for run_id in rows:
            jobs.cancel(run_id)

    def _retry(self) -> None:
        for run_id in self._some("status = 'dead'"):
            self.retried.add(run_id)
            jobs.retry(run_id)

    def _some(self, condition: str) -> list[int]:
        ids = list(db.session.scalars(text(f"SELECT id FROM job_runs WHERE {condition} LIMIT 50")))
        db.session.rollback()
        return self._random.sample(ids, min(1, len(ids)))

    def _waiting(self) -> int:
        sql = "SELECT count(*) FROM job_runs WHERE status IN ('queued', 'failed')"
        waiting: int = db.session.execute(text(sql)).scalar_one()
        db.session.rollback()
        return waiting

    def _instant(self, value: object) -> object:
        if self._app.config["SQLALCHEMY_DATABASE_URI"].startswith("sqlite"):
            return f"{value:%Y-%m-%d %H:%M:%S.%f}"
        return value
