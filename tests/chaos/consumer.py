"""A plain kombu consumer as a process: `python -m tests.chaos.consumer URL QUEUE NAME`; what it got is in the ledger."""

from __future__ import annotations

import sys
from typing import Any

from kombu import Connection, Consumer, Queue

from tests.chaos.ledger import Pen
from tests.support.judge.recorder import install


def consume(url: str, queue: str, name: str) -> None:
    install()
    pen = Pen()

    def received(body: Any, message: Any) -> None:
        pen.write("start", body)
        message.ack()  # its reply is read by the next call
        pen.write("end", body)

    with (
        Connection(url, transport_options={"client_name": name}) as connection,
        Consumer(connection, [Queue(queue)], callbacks=[received], prefetch_count=1),
    ):
        while True:
            connection.drain_events()


if __name__ == "__main__":
    consume(*sys.argv[1:4])
