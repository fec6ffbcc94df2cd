"""The tasks that code declares, with their options and payloads."""
