"""``make screenshots``: the pages of Tally on a busy day and on its first day, for the docs."""

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

from flask_cronjobs import CronJobs
from tests.browser.chromium import Browser, missing, picture, set_light, set_width, start

from . import lively, tasks
from .extensions import db, jobs

FOLDER = Path(__file__).parents[1] / "docs" / "screenshots"
_DESK, _PHONE = 1120, 390
#: Of these pages one picture each: its name, the page, and how many of its pixels at most.
_MORE = (
    ("steps", "runs/101", 950),
    ("workers", "workers", 560),
    ("bulk", "runs/bulk?do=retry&status=dead&newer=24h", 950),
)


def main() -> None:
    """Save all screenshots to ``docs/screenshots``, or to the given folder."""
    parser = argparse.ArgumentParser(
        prog="python -m example_app.screenshots", description="Take the screenshots of the docs."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder: Path = parser.parse_args().folder
    gone = missing()
    if gone is not None:
        sys.exit(f"No screenshots: {gone}")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as temporary:
        browser = start(Path(temporary) / "profile")
        try:
            _take_all(browser, Path(temporary), folder)
        finally:
            browser.quit()


def _take_all(browser: Browser, temporary: Path, folder: Path) -> None:
    """Save Status, the runs and one run of a busy day, and Status of the first day."""
    day = _app(temporary / "day.sqlite", jobs)
    with day.app_context():
        dead = lively.fill(db)
    with _served(day) as url:
        _take(browser, f"{url}/", folder, "status", most=1060)  # The first screen of the README.
        _take(browser, f"{url}/runs", folder, "runs", most=1000)
        _take(browser, f"{url}/runs/{dead}", folder, "run", most=1300)
        for name, page, most in _MORE:
            _take(browser, f"{url}/{page}", folder, name, most, ("light",))
    with _served(_app(temporary / "empty.sqlite", CronJobs())) as url:
        _take(browser, f"{url}/", folder, "empty")


def _app(database: Path, tasks_of: CronJobs) -> Flask:
    """Return an app with pages open to everybody, and with the tasks of *tasks_of*."""
    app = Flask(tasks.__name__)
    app.config.update(
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{database}",
        CRONJOBS_SHOW_PAYLOAD=True,
        CRONJOBS_TIMEZONE=tasks.OFFICE,
    )
    db.init_app(app)
    tasks_of.init_app(app, authorize=lambda action: True)
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


def _take(
    browser: Browser,
    url: str,
    folder: Path,
    name: str,
    most: int = 1800,
    kinds: tuple[str, ...] = ("light", "dark", "phone"),
) -> None:
    """Save the first *most* pixels of the page at *url*: light, dark, and as on a phone."""
    for kind in kinds:
        set_width(browser, _PHONE if kind == "phone" else _DESK)
        set_light(browser, "dark" if kind == "dark" else "light")
        if kind == kinds[0]:
            browser.get(url)
        (folder / f"{name}-{kind}.png").write_bytes(_packed(picture(browser, most)))
    print(f"{folder / name}-{{{','.join(kinds)}}}.png")


def _packed(png: bytes) -> bytes:
    """Return a picture in 256 colors, which takes a third; as it is, without Pillow."""
    if find_spec("PIL") is None:
        return png
    pillow, packed = import_module("PIL.Image"), BytesIO()
    with pillow.open(BytesIO(png)) as image:
        few = image.convert("RGB").quantize(256, dither=pillow.Dither.NONE)
        few.save(packed, "PNG", optimize=True)
    return packed.getvalue()


if __name__ == "__main__":
    main()
