"""Measurements, each runnable by itself: ``python -m benchmarks.pages``."""
