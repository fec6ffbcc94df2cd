"""Tests of the subjects: what is written of each, and what people read."""
