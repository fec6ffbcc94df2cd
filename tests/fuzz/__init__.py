"""A fuzz: handlers are interrupted at random moments, and must leave nothing behind.

`python -m tests.fuzz --interruptions 1000 --database postgresql`, or `make fuzz COUNT=1000`.

- `app`: the tasks, which work in `db.session`, in `once` and in an atomic task.
- `moments`: interrupts the running handler, or the tick, at a random moment.
- `inspection`: what must not be left: locks, connections, frames, threads.
- `worker`: a process that ticks, and inspects itself after each interruption.
- `driver`: starts workers until there were enough interruptions, and checks the database and
  the log of effects.
"""
