"""Tests of the tables and of every statement that writes to them."""
