"""Tests of async handlers."""
