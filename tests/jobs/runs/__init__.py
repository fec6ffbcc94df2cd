"""Tests of runs: enqueued, claimed, changed, listed."""
