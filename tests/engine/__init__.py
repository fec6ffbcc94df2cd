"""Tests of what ticks and resident workers do."""
