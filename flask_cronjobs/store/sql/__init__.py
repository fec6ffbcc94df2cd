"""The longer SQL statements of the store, written once for both databases where possible."""
