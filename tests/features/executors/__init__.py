"""Tests of executors: runs that another system executes."""
