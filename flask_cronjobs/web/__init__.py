"""The pages for operators, and the routes for machines: health, metrics, and a tick by URL.

Importing this package is fast, since every tick does it: the first request that needs a view
imports its module.
"""

from __future__ import annotations

from .blueprint import create_blueprint

__all__ = ["create_blueprint"]
