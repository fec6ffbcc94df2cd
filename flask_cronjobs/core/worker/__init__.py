"""One worker: its runner calls handlers, its keeper claims, renews and records."""
