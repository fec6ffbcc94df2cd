"""Tests of definitions: rows, slots, actions, lists."""
