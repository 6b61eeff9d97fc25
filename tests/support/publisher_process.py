"""A process that publishes as fast as it can: URL QUEUE COUNT NAME TIMEOUT [EXCHANGE]. Prints how it went at the end."""

from __future__ import annotations

import resource
import sys
import time

import kombu

from celery_redis_plus.errors import PublishRefused
from tests.support.judge.recorder import install


def main(url: str, queue: str, count: str, name: str, timeout: str, exchange: str = "") -> None:
    install()
    published = refused = 0
    begin = time.monotonic()
    with kombu.Connection(url, transport_options={"publish_timeout": float(timeout)}) as connection:
        producer = kombu.Producer(connection.channel())
        for number in range(int(count)):
            try:
                producer.publish(f"{name}-{number}", exchange=exchange, routing_key=queue)
                published += 1
            except PublishRefused:
                refused += 1
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"published {published}\nrefused {refused}\nms {(time.monotonic() - begin) * 1000:.0f}")  # noqa: T201
    print(f"cpu_ms {(usage.ru_utime + usage.ru_stime) * 1000:.0f}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
