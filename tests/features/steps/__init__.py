"""Tests of durable steps, and of runs that sleep or wait between them."""
