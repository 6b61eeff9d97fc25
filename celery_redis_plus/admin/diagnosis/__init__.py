"""What may be wrong with a broker, looked for from the outside: the checks of `celery-redis-plus doctor`."""
