"""Whether what files of events need is there: the extra `parquet`."""

from __future__ import annotations

from importlib.util import find_spec

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.installation import install_command


def check_installed() -> None:
    """Raise InvalidArgument, which says what to do, where pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise InvalidArgument(f"pyarrow is not installed: {install_command('parquet')}")
