"""Holds a live server against the design's invariants, and repairs what does not agree; `celery-redis-plus check` runs it."""

from celery_redis_plus.broker.integrity.checker import CHECKED_A_CALL, Checker
from celery_redis_plus.broker.integrity.rules import RULES, Account, Violation

__all__ = ["CHECKED_A_CALL", "RULES", "Account", "Checker", "Violation"]
