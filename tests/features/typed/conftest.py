"""Tests of arguments run on SQLite; those marked `on_both` also run on PostgreSQL."""

from tests.marks import sqlite_unless_marked

database_url = sqlite_unless_marked
