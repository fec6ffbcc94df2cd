"""What the code declares: tasks, their options and their payloads."""
