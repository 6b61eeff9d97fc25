"""Stands in for Flower where this folder is on PYTHONPATH: Celery's command line imports it, which takes a worker 0.2 s."""
