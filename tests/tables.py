"""Job tables in new SQLite files, copied: to create them takes longer than most tests."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from sqlalchemy import create_engine, make_url


def copy_tables(url: str) -> None:
    """Put the job tables into the database of *url*, if it is a SQLite file that does not exist.

    They are as ``db.create_all()`` leaves them.
    """
    parts = make_url(url)
    if parts.get_backend_name() != "sqlite" or parts.database in (None, "", ":memory:"):
        return
    path = Path(str(parts.database))
    if not path.exists() and path.parent.is_dir() and not parts.query:
        shutil.copyfile(_file_with_tables(), path)


@lru_cache(maxsize=1)
def _file_with_tables() -> Path:
    from flask_cronjobs.models.tables import Base

    folder = tempfile.mkdtemp(prefix="cronjobs-tables-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "tables.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    return path
