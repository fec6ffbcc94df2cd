"""Tests of connections, statements and errors."""
