"""`python -m celery_redis_plus` is the command `celery-redis-plus`."""

from __future__ import annotations

import sys

from celery_redis_plus.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
