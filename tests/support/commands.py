"""Commands of `celery-redis-plus`, in this process."""

from __future__ import annotations

from celery_redis_plus.cli.main import main


def run_command(*arguments: str) -> int | None:
    """Run a command, as a shell does; return its exit status."""
    return main([*arguments])
