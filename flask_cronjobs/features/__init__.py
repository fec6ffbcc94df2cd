"""What an app may use or not: each is a module or a folder, found by its name."""
