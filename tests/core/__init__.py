"""Tests of the core: enqueue, slots, claims, ticks, and what residents do each minute."""
