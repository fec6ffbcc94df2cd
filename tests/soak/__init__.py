"""A soak: ticks on several "hosts" under random faults, then a checker over all that happened.

`python -m tests.soak --seconds 600 --database postgresql`, or `make soak SECONDS=600`.

- `app`: the tasks, which write down what they do where no fault can undo it.
- `host`: a host, whose cron starts one tick after the other, or a resident worker; it blocks
  outputs, and crashes and freezes at failpoints.
- `load`: what enqueues, schedules, cancels and retries meanwhile.
- `nemesis`: what kills, stops and terminates processes; `databases`: what cuts and stops
  connections, locks, restarts the server and inserts `odd_rows`. Each fault is written to the
  `timeline`.
- `processes`: finds the processes of the hosts, also orphans.
- `history` and `checker`: what happened, and whether it may have; `explain`: the story of what may
  not.
"""
