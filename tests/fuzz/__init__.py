"""A fuzz: handlers are interrupted at random moments, and nothing may be left of them.

`python -m tests.fuzz --interruptions 1000 --database postgresql`, or `make fuzz COUNT=1000`.

- `app`: the tasks, which work in `db.session`, in `once` and in an atomic task.
- `moments`: interrupts the handler at work, or the tick, at a random moment.
- `inspection`: what may not be left: locks, connections, frames, threads.
- `worker`: a process that ticks, and inspects itself after each interruption.
- `driver`: starts workers until there were enough interruptions, and checks what is in the database
  and in the log of effects.
"""
