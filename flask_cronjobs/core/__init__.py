"""The life of a run: enqueued, due, claimed, performed, recorded, pruned."""
