"""Whether what files of events need is there: the extra `parquet`."""

from __future__ import annotations

from importlib.util import find_spec

from celery_redis_plus.errors import InvalidArgument


def check_installed() -> None:
    """Raise InvalidArgument, which says what to do, where pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise InvalidArgument("pyarrow is not installed: pip install 'celery-redis-plus[parquet]'")
