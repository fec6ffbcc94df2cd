"""``make screenshots``: the pages of Tally on a busy day, for the docs."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from flask import Flask
from werkzeug.serving import make_server

from tests.browser.chromium import Browser, missing, picture, set_light, set_width, start

from . import lively, tasks
from .extensions import db, jobs

FOLDER = Path(__file__).parents[1] / "docs" / "screenshots"
_WIDTHS = {"light": 1120, "phone": 390}
#: The name of a picture, its page, its greatest height in pixels, and the devices that it is taken
#: for.
_PICTURES = (
    ("status", "", 1060, ("light", "phone")),  # The first screen of the README.
    ("runs", "runs", 760, ("light",)),
    ("steps", "runs/101", 950, ("light",)),
    ("workers", "workers", 560, ("light",)),
    ("bulk", "runs/bulk?do=retry&status=dead&newer=24h", 820, ("light",)),
)


def main() -> None:
    """Save all screenshots to ``docs/screenshots``, or to the given folder."""
    parser = argparse.ArgumentParser(
        prog="python -m example_app.screenshots", description="Take the screenshots of the docs."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder: Path = parser.parse_args().folder
    reason = missing()
    if reason is not None:
        sys.exit(f"No screenshots: {reason}")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as temporary:
        browser = start(Path(temporary) / "profile")
        try:
            _take_all(browser, Path(temporary), folder)
        finally:
            browser.quit()


def _take_all(browser: Browser, temporary: Path, folder: Path) -> None:
    """Save the pictures of a busy day."""
    app = _app(temporary / "day.sqlite")
    with app.app_context():
        lively.fill(db)
    with _served(app) as url:
        for name, page, max_height, devices in _PICTURES:
            for device in devices:
                file = folder / f"{name}-{device}.png"
                _take(browser, f"{url}/{page}", file, max_height, _WIDTHS[device])


def _app(database: Path) -> Flask:
    """Return an app with Tally's tasks, and with pages open to everybody."""
    app = Flask(tasks.__name__)
    app.config.update(
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{database}",
        CRONJOBS_SHOW_PAYLOAD=True,
        CRONJOBS_TIMEZONE=tasks.OFFICE,
    )
    db.init_app(app)
    jobs.init_app(app, authorize=lambda action: True)
    with app.app_context():
        db.create_all()
    return app


@contextmanager
def _served(app: Flask) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/jobs"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _take(browser: Browser, url: str, picture_file: Path, max_height: int, width: int) -> None:
    """Save the first *max_height* pixels of the page at *url*."""
    set_width(browser, width)
    set_light(browser, "light")
    browser.get(url)
    picture_file.write_bytes(_packed(picture(browser, max_height)))
    print(picture_file)


def _packed(png: bytes) -> bytes:
    """Return *png* in 256 colors, a third of the size; without Pillow, return it unchanged."""
    if find_spec("PIL") is None:
        return png
    pillow, packed = import_module("PIL.Image"), BytesIO()
    with pillow.open(BytesIO(png)) as image:
        few = image.convert("RGB").quantize(256, dither=pillow.Dither.NONE)
        few.save(packed, "PNG", optimize=True)
    return packed.getvalue()


if __name__ == "__main__":
    main()
