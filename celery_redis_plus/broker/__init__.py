"""The message broker itself: no kombu, no Celery."""
