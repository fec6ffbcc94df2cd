"""An outside monitor, for tests of pings."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class Monitor(HTTPServer):
    """An outside monitor whose answers a test sets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.status = 200
        self.delay = 0.0
        self.posts = True
        self.drips = False
        self.location: str | None = None
        self.requests: list[tuple[str, str | None]] = []
        self.bodies: list[bytes] = []
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def shutdown(self) -> None:
        """Stop the server, and any request that waits for its answer."""
        self.ended.set()
        super().shutdown()


class _Answer(BaseHTTPRequestHandler):
    server: Monitor

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.bodies.append(self.rfile.read(length))
        if self.server.posts:
            self.do_GET()
        else:
            self.send_error(404)

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"]))
        self.server.ended.wait(self.server.delay)
        while self.server.drips and not self.server.ended.wait(0.05):
            self.wfile.write(b"H")
            self.wfile.flush()
        self.send_response(self.server.status)
        if self.server.location is not None:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""
