"""All writes to the job tables, on PostgreSQL and SQLite.

`Bookkeeping` is the connection; `Claims`, `HeldLeases`, `ExpiredLeases`, `Definitions`, `Effects`
and `Ticks` write through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "Bookkeeping",
    "Claims",
    "Definitions",
    "Effects",
    "Expired",
    "ExpiredLeases",
    "Expiry",
    "HeldLeases",
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

if TYPE_CHECKING:
    from .claims import Claims
    from .connection import Bookkeeping
    from .create import create_tables, set_wal
    from .definitions import Definitions
    from .effects import Effects, Mark
    from .enqueue import insert_run
    from .enqueue_many import RunRow, delete_runs, insert_keyed_runs, insert_runs
    from .leases import Expired, ExpiredLeases, Expiry, HeldLeases, Renewal
    from .ticks import TickRow, Ticks
else:
    # An app imports a module of this package at its start, but needs none of these then.
    _MODULES = {
        "Claims": "claims",
        "Bookkeeping": "connection",
        **dict.fromkeys(("create_tables", "set_wal"), "create"),
        "Definitions": "definitions",
        **dict.fromkeys(("Effects", "Mark"), "effects"),
        "insert_run": "enqueue",
        **dict.fromkeys(
            ("RunRow", "delete_runs", "insert_keyed_runs", "insert_runs"), "enqueue_many"
        ),
        **dict.fromkeys(("Expired", "ExpiredLeases", "Expiry", "HeldLeases", "Renewal"), "leases"),
        **dict.fromkeys(("TickRow", "Ticks"), "ticks"),
    }

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
