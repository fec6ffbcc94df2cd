"""The SQL texts of the store, written once for both databases where both can say it."""
