"""Where PostgreSQL finds the job tables: one place for all, or a message about both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import create_engine, event, text

from flask_cronjobs import CronJobs, DatabaseTrouble, TablesMissing
from flask_cronjobs.core.app_state import state_of
from flask_cronjobs.insights.doctor import examine
from flask_cronjobs.insights.health_checks import Finding


@pytest.fixture
def shop(postgresql_url: str) -> Iterator[None]:
    """Create the schemas ``shop`` and ``other`` beside ``public``, without tables."""
    engine = create_engine(postgresql_url)
    schemas = "shop, other, aside"
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA IF EXISTS {schemas} CASCADE"))
        connection.execute(text("CREATE SCHEMA shop; CREATE SCHEMA other"))
    yield
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA IF EXISTS {schemas} CASCADE"))
    engine.dispose()


class Shop:
    """An app on the database."""

    def __init__(self, url: str, **options: Any) -> None:
        self.app, self.db = Flask("shop"), SQLAlchemy()
        self.app.config.update(SQLALCHEMY_DATABASE_URI=url, SQLALCHEMY_ENGINE_OPTIONS=options)
        self.db.init_app(self.app)
        self.jobs = CronJobs(self.app)
        self.jobs.task(name="it")(lambda: None)

    def init(self) -> str:
        result = self.app.test_cli_runner().invoke(args=["jobs", "admin", "init"])
        assert result.exit_code == 0, result.output
        return result.output

    def doctor(self) -> Finding:
        """Return the doctor's finding about the tables."""
        (finding,) = (row for row in examine(state_of(self.app)) if row.id == "tables")
        return finding

    def schemas(self) -> set[str]:
        """Return the schemas that contain job tables."""
        with self.db.engine.connect() as connection:
            query = "SELECT schemaname FROM pg_tables WHERE tablename = 'job_runs'"
            return set(connection.scalars(text(query)))

    def works(self) -> None:
        self.jobs.enqueue("it", commit=True)
        assert self.jobs.tick().succeeded == 1


@pytest.fixture
def make(postgresql_url: str, shop: None) -> Iterator[Any]:
    shops: list[Shop] = []

    def make(**options: Any) -> Shop:
        shops.append(Shop(postgresql_url, **options))
        return shops[-1]

    yield make
    for made in shops:
        with made.app.app_context():
            made.db.engine.dispose()


def set_path(connection: Any, _: object) -> None:
    connection.execute("SET search_path TO shop")
    connection.commit()


@pytest.mark.parametrize("how", ["options", "listener", "first listener"])
@pytest.mark.parametrize("by", ["init", "create_all"])
def test_search_path_of_all_connections_is_one_place(make: Any, how: str, by: str) -> None:
    """With a listener after SQLAlchemy's own, the doctor suggested "run init" again and again."""
    path = {"connect_args": {"options": "-csearch_path=shop"}}
    shop = make(**path if how == "options" else {})
    with shop.app.app_context():
        if how != "options":
            event.listen(shop.db.engine, "connect", set_path, insert=how == "first listener")
        if by == "init":
            assert "Created" in shop.init()
        else:
            shop.db.create_all()
        assert shop.doctor().level == "ok"
        assert "All tables exist" in shop.init()
        assert shop.schemas() == {"shop"}
        shop.works()


def test_session_with_another_search_path_is_told_where_the_tables_are(make: Any) -> None:
    """It does not suggest ``init``, which would find them."""
    shop = make()
    shop.init()
    with shop.app.app_context():
        shop.db.session.execute(text("SET search_path TO other"))
        with pytest.raises(TablesMissing) as caught:
            shop.jobs.enqueue("it")
        shop.db.session.rollback()
        shop.works()
    message = str(caught.value)
    assert 'New connections find them through the search_path "$user", public, but' in message
    assert "this connection has a different one. Add the schema of the job tables to it" in message
    assert "init" not in message


def test_tables_in_another_schema_are_named(make: Any) -> None:
    make(connect_args={"options": "-csearch_path=shop"}).init()
    shop = make()
    finding = shop.doctor()
    assert "look in the schema public, but the job tables are in shop" in finding.todo
    assert "'-csearch_path=shop'" in finding.todo
    assert finding.todo.endswith("If they are not: Run: flask jobs admin init")
    with shop.app.app_context(), pytest.raises(TablesMissing) as caught:
        shop.jobs.tick()
    assert finding.todo in str(caught.value)
    # They may also be another app's, and this app has its own tables beside them.
    with shop.app.app_context():
        shop.init()
        assert shop.schemas() == {"shop", "public"}
        assert shop.doctor().level == "ok"
        shop.works()


def test_search_path_without_a_schema_is_named(make: Any) -> None:
    """Otherwise ``init`` would refer to the doctor, and the doctor to ``init``."""
    shop = make(connect_args={"options": "-csearch_path=nowhere"})
    finding = shop.doctor()
    assert "The search_path is nowhere, and none of its schemas exists" in finding.todo
    failed = shop.app.test_cli_runner().invoke(args=["jobs", "admin", "init"])
    assert failed.exit_code == 1
    assert finding.todo in failed.output
    with shop.app.app_context(), pytest.raises(TablesMissing) as caught:
        shop.jobs.tick()
    assert finding.todo in str(caught.value)


def test_schema_that_the_role_may_not_use_is_named(make: Any, postgresql_url: str) -> None:
    owner = make()
    owner.init()
    with owner.app.app_context(), owner.db.engine.begin() as connection:
        connection.execute(text("REVOKE USAGE ON SCHEMA public FROM PUBLIC"))
        connection.execute(text("CREATE ROLE shop_web"))
    role = make()
    with role.app.app_context():
        event.listen(role.db.engine, "connect", set_role, insert=True)
    try:
        finding = role.doctor()
        assert finding.todo.endswith("GRANT USAGE ON SCHEMA public TO shop_web")
        with role.app.app_context(), pytest.raises((TablesMissing, DatabaseTrouble)) as caught:
            role.jobs.tick()
        assert finding.todo in str(caught.value)
    finally:
        with owner.app.app_context(), owner.db.engine.begin() as connection:
            connection.execute(
                text("DROP ROLE shop_web; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            )


def set_role(connection: Any, _: object) -> None:
    connection.execute("SET ROLE shop_web")
    connection.commit()
