"""One program for each contestant, run by the Python of that contestant's own environment."""
