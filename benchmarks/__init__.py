"""Benchmarks; each also runs by itself, such as ``python -m benchmarks.pages``."""
