"""All writes to the job tables, on PostgreSQL and SQLite.

`Bookkeeping` is the connection; `Claims`, `Definitions`, `Effects` and `Ticks` write through it.
"""

from __future__ import annotations

from .claims import Claims, Expired, Renewal
from .connection import Bookkeeping
from .create import create_tables, set_wal
from .definitions import Definitions
from .effects import Effects, Mark
from .enqueue import insert_run
from .enqueue_many import RunRow, delete_runs, insert_keyed_runs, insert_runs
from .ticks import TickRow, Ticks

__all__ = [
    "Bookkeeping",
    "Claims",
    "Definitions",
    "Effects",
    "Expired",
    "Mark",
    "Renewal",
    "RunRow",
    "TickRow",
    "Ticks",
    "create_tables",
    "delete_runs",
    "insert_keyed_runs",
    "insert_run",
    "insert_runs",
    "set_wal",
]
