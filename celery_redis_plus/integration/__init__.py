"""What knows Celery: `configure_app`, the worker's bootstep, the publish signal, `inspect scheduled`."""
