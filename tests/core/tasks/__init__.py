"""Tests of what code declares."""
