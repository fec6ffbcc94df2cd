"""Debug mode without `authorize` is open to this machine only."""

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


def _statuses(client: FlaskClient, address: str | None, **headers: str) -> tuple[int, int]:
    """Return the statuses of a page, and of an action on a missing row."""
    environ = {"REMOTE_ADDR": address}
    page = client.get("/jobs/", environ_overrides=environ, headers=headers)
    path, form = "/jobs/pause", {"what": "definition:x"}
    headers |= OWN
    action = client.post(path, data=form, environ_overrides=environ, headers=headers)
    return page.status_code, action.status_code


HERE = ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1")
NAMES = ("localhost", "localhost:5000", "shop.localhost", "127.0.0.1:5000", "[::1]:5000")


@pytest.mark.parametrize(
    ("address", "host"),
    [*((address, "localhost") for address in HERE), *(("127.0.0.1", name) for name in NAMES)],
)
def test_open_to_a_peer_on_this_machine_by_its_names(
    debug_client: FlaskClient, address: str, host: str
) -> None:
    assert _statuses(debug_client, address, Host=host) == (200, 404)


ELSEWHERE = ("192.168.1.9", "fe80::1%eth0", "::ffff:10.0.0.1", "not an address", "", None)
PROXIES = ("Forwarded", "X-Forwarded-Host", "X-Forwarded-For", "X-Forwarded-Proto", "Via")


@pytest.mark.parametrize(
    ("address", "headers", "says"),
    [
        # The client chooses the `Host` header.
        *((address, {"Host": "localhost:5000"}, "from another machine") for address in ELSEWHERE),
        # A foreign page can let its own name resolve to this machine.
        *(
            ("127.0.0.1", {"Host": host}, f"were requested at the host {host!r}. In debug mode")
            for host in ("evil.example:5000", "localhost.evil.example", "127.0.0.2", "")
        ),
        # A proxy on this machine may act for any other.
        *(
            ("127.0.0.1", {name: "127.0.0.1"}, f"which sent the header {name.title()}. In debug")
            for name in PROXIES
        ),
    ],
)
def test_closed_to_others_whatever_they_say(
    debug_client: FlaskClient,
    caplog: pytest.LogCaptureFixture,
    address: str | None,
    headers: dict[str, str],
    says: str,
) -> None:
    assert _statuses(debug_client, address, **headers) == (403, 403)
    (warning,) = [line for line in caplog.messages if "authorize=" in line]
    assert says.lower() in warning.lower()


def test_closed_to_a_forwarded_request_whatever_it_says(
    app: Flask, debug_client: FlaskClient
) -> None:
    """`ProxyFix` takes the peer from a header, which a client may have sent."""
    app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1)  # type: ignore[method-assign]
    for peer, address in (("192.168.1.9", "127.0.0.1"), ("127.0.0.1", "192.168.1.9")):
        assert _statuses(debug_client, peer, **{"X-Forwarded-For": address}) == (403, 403)
