"""The program for `spark-submit`: the same jobs as `celery-redis-plus spark`, on the master that spark-submit names.

spark-submit --master spark://host:7077 .../celery_redis_plus/spark/submit.py aggregate --root /shared/tables
"""

from __future__ import annotations

import sys

from celery_redis_plus.spark.jobs import main

if __name__ == "__main__":
    sys.exit(main())
