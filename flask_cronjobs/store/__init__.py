"""All writes to the job tables, on PostgreSQL and SQLite. `Bookkeeping` is the connection."""
