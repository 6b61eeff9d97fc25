"""The operator's command line: `celery-redis-plus COMMAND`."""
