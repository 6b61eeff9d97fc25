"""Runs kombu's and Celery's own integration suites on our transport: `python -m tests.upstream --help`."""
