"""The statements of rates that `tests/repository/sql.py` renders."""

from __future__ import annotations

from flask_cronjobs.features.rates import rates

STATEMENTS = {"find-starts": rates._groups, "open-starts": rates._open_gate}
