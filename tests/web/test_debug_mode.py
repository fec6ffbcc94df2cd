"""Debug mode without `authorize`: open to this machine, and to nobody else."""

from __future__ import annotations

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from werkzeug.middleware.proxy_fix import ProxyFix

from flask_cronjobs import CronJobs
from tests.tables import make_tables

from .conftest import OWN


@pytest.fixture
def debug_client(app: Flask, db: SQLAlchemy) -> FlaskClient:
    """A client of an app in debug mode, without `authorize`."""
    app.debug = True
    app.testing = False
    CronJobs(app)
    make_tables(app, db)
    return app.test_client()


def _status(client: FlaskClient, address: str | None, **headers: str) -> tuple[int, int]:
    environ = {"REMOTE_ADDR": address}
    page = client.get("/jobs/", environ_overrides=environ, headers=headers)
    action = client.post(
        "/jobs/definitions/pause",
        data={"name": "x"},
        environ_overrides=environ,
        headers={**OWN, **headers},
    )
    return page.status_code, action.status_code


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_open_to_a_peer_on_this_machine(debug_client: FlaskClient, address: str) -> None:
    assert _status(debug_client, address) == (200, 404)


@pytest.mark.parametrize(
    "address", ["192.168.1.9", "fe80::1%eth0", "::ffff:10.0.0.1", "not an address", "", None]
)
def test_closed_to_other_machines_that_say_localhost(
    debug_client: FlaskClient, address: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The `Host` header is what the client says it is."""
    assert _status(debug_client, address, Host="localhost:5000") == (403, 403)
    assert "from another machine" in caplog.text


def test_closed_to_a_forwarded_request_whatever_it_says(
    app: Flask, debug_client: FlaskClient
) -> None:
    """`ProxyFix` puts in place of the peer what a header says, which a client may have sent."""
    app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1)  # type: ignore[method-assign]
    elsewhere = {"X-Forwarded-For": "127.0.0.1"}
    answer = debug_client.get(
        "/jobs/", environ_overrides={"REMOTE_ADDR": "192.168.1.9"}, headers=elsewhere
    )
    assert answer.status_code == 403
    answer = debug_client.get("/jobs/", headers={"X-Forwarded-For": "192.168.1.9"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "header",
    [
        *("Forwarded", "X-Real-IP", "X-Forwarded-Host", "X-Forwarded-For", "X-Forwarded-Proto"),
        *("Via", "CF-Connecting-IP", "True-Client-IP", "X-Client-IP", "X-Original-Host"),
    ],
)
def test_closed_behind_any_proxy(
    debug_client: FlaskClient, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy on this machine may stand for any other."""
    assert _status(debug_client, "127.0.0.1", **{header: "127.0.0.1"}) == (403, 403)
    assert f"which sent the header {header}".lower() in caplog.text.lower()
