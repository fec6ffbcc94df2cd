"""What goes wrong, made to go wrong, and what must then be true."""
