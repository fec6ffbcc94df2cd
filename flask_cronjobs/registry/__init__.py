"""What code declares: handlers, their options and their schedules, whatever the app."""
