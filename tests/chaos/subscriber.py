"""A fanout subscriber that a test cuts off and freezes: `python -m tests.chaos.subscriber URL NUMBER TOTAL FILE`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import kombu

import celery_redis_plus  # noqa: F401 - makes the URL known
from tests.support.judge.recorder import install

EXCHANGE = kombu.Exchange("news", "fanout", durable=True)
NAME = "chaos-subscriber"
READY = b"ready\n"
#: Seconds without anything new after which it gives up.
PATIENCE_S = 120.0


def main(url: str, number: str, total: int, path: Path) -> None:
    """Write `body redelivered` for every delivery, until the last one has come."""
    install()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    done = False

    def take(message: kombu.Message) -> None:
        nonlocal done, deadline
        os.write(file, b"%d %d\n" % (message.payload, message.delivery_info["redelivered"]))
        deadline = time.monotonic() + PATIENCE_S
        done = message.payload == total - 1
        message.ack()

    deadline = time.monotonic() + PATIENCE_S
    connection = kombu.Connection(url, transport_options={"client_name": f"{NAME}-{number}", "subscriber_timeout": 300})
    queue = kombu.Queue(f"q{number}", EXCHANGE, durable=True)
    ready = False
    while not done and time.monotonic() < deadline:
        try:
            connection.ensure_connection(max_retries=None, interval_start=0.02, interval_step=0.02, interval_max=0.2)
            with kombu.Consumer(connection.channel(), [queue], on_message=take):
                if not ready:
                    os.write(file, READY)
                    ready = True
                while not done and time.monotonic() < deadline:
                    try:
                        connection.drain_events(timeout=1)
                    except TimeoutError:
                        continue
        except connection.connection_errors:
            connection.collect()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
