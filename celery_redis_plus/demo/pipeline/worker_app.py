"""What the workers run: `celery -A celery_redis_plus.demo.pipeline.worker_app worker`."""

from __future__ import annotations

from celery_redis_plus.demo.app import app_of_worker
from celery_redis_plus.demo.pipeline.app import make_app

app = app_of_worker(make_app)
