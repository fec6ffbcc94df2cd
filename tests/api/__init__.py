"""Tests of what an app imports and calls: the extension, tasks, enqueue, settings, signals."""
