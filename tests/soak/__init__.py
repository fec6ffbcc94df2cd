"""A soak: ticks on several "hosts" under random faults, then a checker over all that happened.

`python -m tests.soak --seconds 600 --database postgresql`, or `make soak SECONDS=600`.

- `app`: the tasks, which write down what they do where no fault can undo it.
- `host`: a host, whose cron starts one tick after the other.
- `load`: what enqueues, schedules, cancels and retries meanwhile.
- `nemesis`: what kills, stops, terminates, cuts connections and restarts the database.
- `history` and `checker`: what happened, and whether it may have.
"""
