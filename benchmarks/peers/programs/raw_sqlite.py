"""Plain sqlite3 in WAL mode: a floor. The option is how many jobs one transaction takes."""

from __future__ import annotations

import json
import sqlite3

from ..program import Program

TABLE = """
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        payload TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'queued',
        attempts INTEGER NOT NULL DEFAULT 0,
        finished_at TEXT
    );
    CREATE INDEX jobs_queued ON jobs (id) WHERE status = 'queued';
    PRAGMA journal_mode = WAL;
"""

RECORD = "UPDATE jobs SET status = 'succeeded', finished_at = datetime() WHERE id = ?"
CLAIM = """
    UPDATE jobs SET status = 'running', attempts = attempts + 1
    WHERE id IN (SELECT id FROM jobs WHERE status = 'queued' ORDER BY id LIMIT ?)
    RETURNING id, payload
"""


class RawSqlite(Program):
    """Each commit is synced to the disk, as SQLite does by default."""

    def prepare(self) -> None:
        self.connect().executescript(TABLE)

    def load(self) -> None:
        connection = self.connect()
        with self.timed():
            for chunk in self.chunks():
                payloads = [(json.dumps({"number": number}),) for number in chunk]
                with connection:
                    connection.executemany("INSERT INTO jobs (payload) VALUES (?)", payloads)

    def work(self) -> None:
        note, connection = self.calls.note, self.connect()
        rows = [(0, "")]
        while rows:
            with connection:
                connection.executemany(RECORD, [row[:1] for row in rows])
                rows = connection.execute(CLAIM, [int(self.option)]).fetchall()
            for _, payload in rows:
                note(json.loads(payload)["number"])

    def connect(self) -> sqlite3.Connection:
        """Open the file."""
        return sqlite3.connect(self.url)


if __name__ == "__main__":
    RawSqlite().main()
