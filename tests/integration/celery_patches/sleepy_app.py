"""The app of a worker whose loop is woken by messages and signals alone."""

from __future__ import annotations

from celery_redis_plus.consumer import hub_registration
from tests.integration.celery.app import app

__all__ = ["app"]

hub_registration.TIMER_S = 3600.0
