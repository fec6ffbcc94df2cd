"""Tests of the example app."""
