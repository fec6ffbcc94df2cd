"""Tests of what an operator does."""
