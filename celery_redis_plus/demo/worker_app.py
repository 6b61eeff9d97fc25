"""What the demo's workers run: `celery -A celery_redis_plus.demo.worker_app worker`."""

from __future__ import annotations

from celery_redis_plus.demo.app import app_of_worker

app = app_of_worker()
