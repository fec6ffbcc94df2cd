"""Celery's messages are sent to Redis together, even if Redis has closed the connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from flask_cronjobs.features.executors.executor import executor_of
from flask_cronjobs.types import Claim
from tests.brokers import Broker

pytest.importorskip("celery")
TOKEN = "handed:celery:0:host:1:0"
RUNS = [Claim(number, TOKEN, "task", "{}", 1, 1, None, None) for number in range(50)]


@pytest.fixture
def executor(redis_server: Broker, sqlite_url: str) -> Iterator[Any]:
    from celery import Celery

    from flask_cronjobs.executors.celery import init

    redis_server.renew()
    celery = Celery("tests", broker=redis_server.url)
    app = Flask("tests")
    init(celery, app)
    yield executor_of(app)
    celery.close()


def waiting(server: Broker) -> int:
    from redis import Redis

    with Redis.from_url(server.url) as client:
        return int(client.llen("far"))


def test_messages_wait_in_their_order(executor: Any, redis_server: Broker) -> None:
    executor.send("far", RUNS)
    assert waiting(redis_server) == len(RUNS)


def test_they_take_one_exchange(
    executor: Any, redis_server: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kombu.messaging import Producer
    from redis import Connection

    if not hasattr(Producer, "batch"):
        pytest.skip("Kombu before 5.7 sends each message by itself")
    executor.send("far", RUNS[:1])
    commands: list[object] = []
    send = Connection.send_packed_command

    def count(self: Connection, command: object, *args: Any, **more: Any) -> Any:
        commands.append(command)
        return send(self, command, *args, **more)

    monkeypatch.setattr(Connection, "send_packed_command", count)
    executor.send("far", RUNS)
    assert len(commands) < 10
    monkeypatch.undo()
    assert waiting(redis_server) == len(RUNS) + 1


def test_a_restarted_server_gets_them(executor: Any, redis_server: Broker) -> None:
    executor.send("far", RUNS)
    redis_server.renew()
    executor.send("far", RUNS)
    assert waiting(redis_server) == len(RUNS)
