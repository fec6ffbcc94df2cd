"""What executes the runs of chosen queues instead of our workers: Celery."""
