"""Models: a small one searched to its end, and the store beside one that is easy to believe."""
