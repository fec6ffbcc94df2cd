"""Tests of arguments with types."""
