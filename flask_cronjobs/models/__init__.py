"""The job tables as mapped classes, for your own queries and joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .records import *  # noqa: F403
    from .tables import *  # noqa: F403
else:
    # Mapping the classes takes as long as importing the rest of the package, and most processes do
    # not use them. So they are mapped when one is first looked up.
    def __getattr__(name):
        if name != "__all__" and not name.startswith("Job"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import records, tables

        if name == "__all__":
            return sorted([*records.__all__, *tables.__all__])
        return getattr(records if name in records.__all__ else tables, name)

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
