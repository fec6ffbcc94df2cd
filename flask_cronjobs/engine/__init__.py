"""What a tick does, from the first statement to the last."""
