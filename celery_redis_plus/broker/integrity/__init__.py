"""Holds a live server against the design's invariants, and repairs what does not agree; `celery-redis-plus check` runs it."""

from celery_redis_plus.broker.integrity.checker import BATCH, Checker
from celery_redis_plus.broker.integrity.rules import RULES, Account, Violation

__all__ = ["BATCH", "RULES", "Account", "Checker", "Violation"]
