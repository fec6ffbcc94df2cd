"""Plain psycopg, as fast as one connection goes: a floor, not a queue that anybody would use.

One statement finalizes the last jobs and claims the next ones, on a table with one partial index.
The option is how many at a time, or how to load: ``copy``, or ``copy at once`` for all in one call.
"""

from __future__ import annotations

import json

import psycopg

from ..program import Program

TABLE = """
    CREATE TABLE jobs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        payload jsonb NOT NULL,
        status text NOT NULL DEFAULT 'queued',
        run_at timestamptz NOT NULL DEFAULT now(),
        attempts integer NOT NULL DEFAULT 0,
        locked_by text,
        finished_at timestamptz
    );
    CREATE INDEX jobs_queued ON jobs (run_at, id) WHERE status = 'queued';
"""

EXCHANGE = """
    WITH recorded AS (
        UPDATE jobs SET status = 'succeeded', finished_at = clock_timestamp(), locked_by = NULL
        WHERE id = ANY(%(done)s) AND locked_by = 'worker'
    )
    UPDATE jobs SET status = 'running', attempts = attempts + 1, locked_by = 'worker'
    WHERE id = ANY(ARRAY(
        SELECT id FROM jobs WHERE status = 'queued' AND run_at <= now()
        ORDER BY run_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, payload
"""

INSERT = "INSERT INTO jobs (payload) SELECT unnest(%s::text[])::jsonb"
COPY = "COPY jobs (payload) FROM STDIN"


class Raw(Program):
    """No handler is looked up; what a queue does for its users is left out."""

    def prepare(self) -> None:
        with self.connect() as connection:
            connection.execute(TABLE)

    def load(self) -> None:
        with self.connect() as connection, self.timed():
            for chunk in [range(self.jobs)] if self.option == "copy at once" else self.chunks():
                payloads = [json.dumps({"number": number}) for number in chunk]
                if not self.option.startswith("copy"):
                    connection.execute(INSERT, [payloads])
                    continue
                with connection.cursor().copy(COPY) as copy:
                    copy.write("".join(f"{payload}\n" for payload in payloads))

    def work(self) -> None:
        note = self.calls.note
        with self.connect() as connection, connection.cursor() as cursor:
            parameters = {"done": [0], "limit": int(self.option)}
            while rows := cursor.execute(EXCHANGE, parameters).fetchall():
                for _, payload in rows:
                    note(payload["number"])
                parameters["done"] = [row[0] for row in rows]

    def enqueue(self) -> None:
        with self.connect() as connection, self.timed():
            for number in self.singly():
                payload = json.dumps({"number": number})
                connection.execute("INSERT INTO jobs (payload) VALUES (%s) RETURNING id", [payload])

    def connect(self) -> psycopg.Connection:
        """Connect without transactions: each statement commits itself."""
        return psycopg.connect(self.url, autocommit=True)


if __name__ == "__main__":
    Raw().main()
