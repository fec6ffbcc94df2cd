"""The statements of rates, for `docs/sql`."""

from __future__ import annotations

from flask_cronjobs.features.rates import rates

STATEMENTS = {"find-starts": rates._groups, "open-starts": rates._open_gate}
