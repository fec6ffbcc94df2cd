"""Tests of effects that happen once."""
