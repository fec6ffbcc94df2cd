"""Flask-CronJobs and its peers at the same work: ``python -m benchmarks.peers``."""
