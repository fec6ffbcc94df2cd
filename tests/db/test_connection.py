"""The bookkeeping connection: its isolation, its retries, and what it releases."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError

from flask_cronjobs.db import connection as connection_module
from flask_cronjobs.db.create import create_tables
from flask_cronjobs.db.dialect import dialect_of
from flask_cronjobs.errors import DatabaseTrouble, SetupError
from flask_cronjobs.models import JobRun
from tests.kit import Kit, in_threads
from tests.marks import on_postgresql, on_sqlite

#: The isolation levels that an app may set. SQLite has READ UNCOMMITTED instead of REPEATABLE READ.
#: The last one is set on the server, for all connections.
SERVER = {"connect_args": {"options": "-c default_transaction_isolation=serializable"}}
ENGINES: dict[str, dict[str, Any]] = {
    "autocommit": {"isolation_level": "AUTOCOMMIT"},
    "repeatable read": {"isolation_level": "REPEATABLE READ"},
    "serializable": {"isolation_level": "SERIALIZABLE"},
    "server": SERVER,
}
#: Errors that may pass, and whether each means that the server is gone or read-only.
TRANSIENT = {"40001": False, "25006": True, "25P03": True, "25P04": True, "57P01": True}


@pytest.fixture
def kit(database_url: str, engine_options: dict[str, Any]) -> Iterator[Kit]:
    """The job tables, on an engine with the options of the test."""
    if database_url.startswith("sqlite"):
        if "connect_args" in engine_options:
            pytest.skip("SQLite has no server")
        if "REPEATABLE READ" in engine_options.values():
            engine_options = {"isolation_level": "READ UNCOMMITTED"}
    engine = create_engine(database_url, **engine_options)
    create_tables(engine)
    kit = Kit(engine)
    yield kit
    kit.close()


any_engine = pytest.mark.parametrize("engine_options", ENGINES.values(), ids=ENGINES, indirect=True)


def insert_run(connection: Connection) -> None:
    connection.execute(insert(JobRun).values(job_type="task"))


def errors_of(engine: Engine) -> list[BaseException]:
    """Collect every error that the database answers with from now on, even if it is retried."""
    errors: list[BaseException] = []

    def hear(context: Any) -> None:
        errors.append(context.original_exception)

    event.listen(engine, "handle_error", hear)
    return errors


def fail_with(connection: Connection, code: str) -> None:
    """Fail in the database, as PostgreSQL does with this SQLSTATE."""
    connection.exec_driver_sql(
        f"DO $$ BEGIN RAISE EXCEPTION 'trouble' USING ERRCODE = '{code}'; END $$"
    )


class TestIsolation:
    @any_engine
    def test_transaction_that_raises_leaves_nothing(self, kit: Kit) -> None:
        def work(connection: Connection) -> None:
            insert_run(connection)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            kit.books.transaction(work)
        assert kit.all_rows() == []
        kit.books.transaction(insert_run)
        assert len(kit.all_rows()) == 1

    @any_engine
    def test_statement_is_committed_at_once_and_sees_what_others_commit(self, kit: Kit) -> None:
        worker = kit.another()
        count = text("SELECT count(*) FROM job_runs")
        assert kit.books.rows(count)[0][0] == 0
        worker.books.rows(insert(JobRun).values(job_type="task").returning(JobRun.id))
        assert kit.books.rows(count)[0][0] == 1
        worker.books.close()

    @on_postgresql
    @any_engine
    def test_transaction_sees_what_others_commit_meanwhile(self, kit: Kit) -> None:
        def work(connection: Connection) -> tuple[str, list[int]]:
            count = text("SELECT count(*) FROM job_runs")
            before = connection.execute(count).scalar_one()
            kit.run()
            level = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
            return level, [before, connection.execute(count).scalar_one()]

        assert kit.books.transaction(work) == ("read committed", [0, 1])

    @any_engine
    def test_racing_workers_share_no_run_and_meet_no_serialization_failure(self, kit: Kit) -> None:
        ids = kit.runs(40)
        errors = errors_of(kit.engine)
        assert race_to_the_end(kit) == ids
        assert "40001" not in [getattr(error, "sqlstate", None) for error in errors]

    @on_postgresql
    @pytest.mark.parametrize("engine_options", [SERVER], ids=["server"], indirect=True)
    def test_each_statement_is_read_committed_though_another_had_failed(self, kit: Kit) -> None:
        level = text("SELECT current_setting('transaction_isolation')")
        assert kit.books.rows(level)[0][0] == "read committed"
        with pytest.raises(DatabaseTrouble):
            kit.books.rows(text("SELECT 1 / 0"))
        assert kit.books.rows(level)[0][0] == "read committed"
        kit.books.call(fail_in_its_statement)
        assert kit.books.rows(level)[0][0] == "read committed"


class TestSeveralStatements:
    """Several statements are sent at once, in one transaction."""

    @any_engine
    def test_each_sees_the_one_before_and_the_rows_of_each_come_back(self, kit: Kit) -> None:
        for number in (1, 2):
            first, last = kit.books.rows_of_each([(ONE_MORE, {"task": "task"}), (COUNT, {})])
            assert [tuple(row) for row in first] == [("task", "queued")]
            assert last[0].number == number
        (only,) = kit.books.rows_of_each([(COUNT, {})])
        assert tuple(only[0]) == (2,)

    @any_engine
    @pytest.mark.parametrize("failing", [0, 1])
    def test_one_that_fails_rolls_back_the_other_and_is_not_sent_again(
        self, kit: Kit, failing: int
    ) -> None:
        """Otherwise psycopg would send the statements that it still holds."""
        statements = [(ONE_MORE, {"task": "task"}), (ODD, {})]
        with pytest.raises(DatabaseTrouble, match="ck_job_runs_status"):
            kit.books.rows_of_each(statements if failing else statements[::-1])
        assert kit.books.rows(COUNT)[0].number == 0

    @any_engine
    def test_both_are_sent_again_after_an_error_that_may_pass(self, kit: Kit) -> None:
        tries: list[str] = []

        @event.listens_for(kit.engine, "before_cursor_execute")
        def fail_once(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
            tries.append(statement)
            if statement == COUNT.text and tries.count(statement) == 1:
                raise OperationalError(
                    statement, {}, sqlite3.OperationalError("database is locked")
                )

        first, last = kit.books.rows_of_each([(ONE_MORE, {"task": "task"}), (COUNT, {})])
        assert (len(first), tuple(last[0])) == (1, (1,))
        assert len([sql for sql in tries if "INSERT" in sql]) == 2 == tries.count(COUNT.text)


ONE_MORE = text("INSERT INTO job_runs (job_type) VALUES (:task) RETURNING job_type, status")
ODD = text("INSERT INTO job_runs (job_type, status) VALUES ('task', 'odd')")
COUNT = text("SELECT count(*) AS number FROM job_runs")


def fail_in_its_statement(connection: Connection) -> None:
    """Send a statement that the server refuses, and continue with the connection."""
    with pytest.raises(DBAPIError):
        connection.execute(text("SELECT 1 / 0"))
    connection.rollback()


def race_to_the_end(kit: Kit) -> list[int]:
    """Let four workers claim and finish until nothing is left; return the ids that they claimed."""
    claimed: list[int] = []
    start = threading.Barrier(4)

    def compete() -> None:
        worker = kit.another()
        start.wait()
        with worker.books:
            while claims := worker.claim(limit=3):
                for claim in claims:
                    claimed.append(claim.id)
                    assert worker.finish(claim)

    in_threads(*[compete] * 4)
    return sorted(claimed)


@on_postgresql
class TestTriedAgain:
    @pytest.mark.parametrize("code", ["25006", "0A000"])
    def test_statement_that_the_server_refused_is_known_to_have_done_nothing(
        self, kit: Kit, code: str
    ) -> None:
        """So it is tried again even if it must not be committed twice."""
        refusal = text(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$")
        with kit.books.trying_once(), pytest.raises(DatabaseTrouble) as raised:
            kit.books.rows(refusal, repeat=False)
        assert not raised.value.unknown
        kit.books.rows(text("SET default_transaction_read_only = on"))
        kit.books.rows(insert(JobRun).values(job_type="task").returning(JobRun.id), repeat=False)
        assert len(kit.all_rows()) == 1

    @pytest.mark.parametrize(("code", "emptied"), TRANSIENT.items())
    def test_whole_transaction_runs_again(self, kit: Kit, code: str, emptied: bool) -> None:
        """Such an error empties the app's pool, whose connections go to the same server."""
        before = backend(kit.engine)
        assert backend(kit.engine) == before
        tries: list[str] = []

        def work(connection: Connection) -> None:
            insert_run(connection)
            tries.append(code)
            if len(tries) <= 2:
                fail_with(connection, code)
            insert_run(connection)

        kit.books.transaction(work)
        assert len(tries) == 3
        assert (backend(kit.engine) != before) == emptied
        assert len(kit.all_rows()) == 2

    @pytest.mark.parametrize(
        "engine_options",
        [{"connect_args": {"options": "-c deadlock_timeout=50ms"}}],
        ids=[""],
        indirect=True,
    )
    def test_both_of_a_real_deadlock_come_to_their_end(self, kit: Kit) -> None:
        one, two = kit.runs(2)
        barrier = threading.Barrier(2)
        tries: list[int] = []

        def take(first: int, second: int) -> None:
            mine: list[int] = []

            def work(connection: Connection) -> None:
                mine.append(first)
                tries.append(first)
                take_one(connection, first)
                if len(mine) == 1:
                    barrier.wait(60)
                take_one(connection, second)

            with kit.another().books as books:
                books.transaction(work)

        in_threads(partial(take, one, two), partial(take, two, one))
        assert [row.priority for row in kit.all_rows()] == [2, 2]
        assert len(tries) > 2


def take_one(connection: Connection, run_id: int) -> None:
    connection.execute(
        text("UPDATE job_runs SET priority = priority + 1 WHERE id = :id"), {"id": run_id}
    )


def backend(engine: Engine) -> int:
    """Return the server process behind the connection that the pool gives."""
    with engine.connect() as connection:
        pid: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        return pid


@on_sqlite
class TestSQLite:
    def test_lock_of_another_writer_is_waited_for_beyond_the_busy_timeout(
        self, kit: Kit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection_module, "SQLITE_BUSY_SECONDS", 0.02)
        path = make_url(kit.engine.url).database or ""
        holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        errors: list[BaseException] = []

        def hear(context: Any) -> None:
            errors.append(context.original_exception)
            if len(errors) == 3:
                holder.execute("COMMIT")

        event.listen(kit.engine, "handle_error", hear)
        tries: list[int] = []

        def work(connection: Connection) -> None:
            tries.append(1)
            insert_run(connection)

        kit.books.transaction(work)
        holder.close()
        assert [str(error) for error in errors] == ["database is locked"] * 3
        assert (len(tries), len(kit.all_rows())) == (1, 1)

    def test_transaction_that_reads_before_it_writes_is_not_overtaken(self, kit: Kit) -> None:
        """A deferred transaction would fail at its write if another has written since its read."""
        run_id = kit.run()
        tries: list[int] = []
        overtaken = threading.Event()

        def overtake() -> None:
            with kit.another().books as books:
                books.rows(text("UPDATE job_runs SET priority = 5"))
            overtaken.set()

        thread = threading.Thread(target=overtake)

        def work(connection: Connection) -> None:
            tries.append(1)
            connection.execute(text("SELECT priority FROM job_runs")).all()
            if len(tries) == 1:
                thread.start()
                assert not overtaken.wait(0.3)
            take_one(connection, run_id)

        kit.books.transaction(work)
        thread.join()
        assert len(tries) == 1
        assert kit.get(run_id).priority == 5

    def test_sqlite_too_old_for_returning_is_refused(
        self, kit: Kit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
        with pytest.raises(SetupError, match=r"needs 3\.35\.0 or later"):
            dialect_of(create_engine(kit.engine.url))


# Other threads run while it waits for the database
