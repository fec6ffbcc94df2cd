"""Executors, which run chosen queues instead of our workers: Celery."""
