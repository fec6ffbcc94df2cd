"""Tests of one worker: claim, run, interrupt, record."""
