"""Writers that begin at once at one URL."""

from __future__ import annotations

import threading
import time

from celery_redis_plus.errors import TablesUnusable
from celery_redis_plus.spark.object_store import ObjectStore


def assert_one_works_at_a_time(url):
    """Have four of them lock the tables: each looks, while it holds, whether there is another one that does."""
    holding, wrong, done = [], [], []

    def work(number):
        for _ in range(3):
            try:
                with ObjectStore(url).locked():
                    holding.append(number)
                    if len(holding) > 1:
                        wrong.append(list(holding))
                    time.sleep(0.02)
                    holding.remove(number)
                    done.append(number)
            except TablesUnusable:
                time.sleep(0.05)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == []
    assert done, "one at least got through"
