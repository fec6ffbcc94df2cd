"""The pages: what an operator sees of the job tables, and the few routes that machines ask.

Importing this is light on purpose, since every tick pays for it: views are loaded by the first
request that needs them.
"""

from __future__ import annotations

from .blueprint import create_blueprint

__all__ = ["create_blueprint"]
