"""Tests of schedules and their slots."""
