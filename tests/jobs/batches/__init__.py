"""Tests of batches: ended, changed, listed."""
