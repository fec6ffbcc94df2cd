"""Tests of the features, a folder or a file for each."""
