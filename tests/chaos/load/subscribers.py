"""Subscribers of broadcasts in this process, which reconnect whatever happens; the judge knows what each has to get."""

from __future__ import annotations

import threading
import time
from typing import Any

import kombu
from kombu.exceptions import OperationalError

from tests.support.judge import records
from tests.support.judge.recorder import note
from tests.support.waiting import wait_until

EXCHANGE = kombu.Exchange("chaos-news", "fanout", durable=True)
LAST = "the last news"
OPTIONS = {"client_name": "chaos-test", "socket_timeout": 2, "socket_connect_timeout": 2}


class Subscriber(threading.Thread):
    """Consumes the broadcasts over `url` until it has `LAST`; a durable one by its own queue's position on the server."""

    def __init__(self, url: str, name: str, *, durable: bool) -> None:
        super().__init__(name=f"subscriber-{name}", daemon=True)
        arguments = {"x-durable-subscriber": True} if durable else None
        self._queue = kombu.Queue(name, EXCHANGE, durable=True, queue_arguments=arguments)
        self._url = url
        self.ready = threading.Event()
        self._stopping = False
        self.done = False
        self.error: Exception | None = None

    def stop(self) -> None:
        self._stopping = True
        self.join(30)

    def run(self) -> None:
        connection = kombu.Connection(self._url, transport_options=OPTIONS)
        try:
            while not self._is_over():
                try:
                    self._consume(connection)
                except (*connection.connection_errors, OperationalError):
                    connection.collect()
                    time.sleep(0.05)
        except Exception as error:  # noqa: BLE001 - the test fails with it
            self.error = error
        finally:
            connection.collect()

    def _consume(self, connection: kombu.Connection) -> None:
        connection.ensure_connection(max_retries=1, interval_start=0.02)
        with kombu.Consumer(connection.channel(), [self._queue], on_message=self._take):
            self.ready.set()
            while not self._is_over():
                try:
                    connection.drain_events(timeout=0.5)
                except TimeoutError:
                    continue

    def _is_over(self) -> bool:
        return self.done or self._stopping

    def _take(self, message: Any) -> None:
        message.ack()
        self.done = self.done or message.payload == LAST


def finish(subscribers: list[Subscriber], app: Any, timeout_s: float) -> None:
    """Publish the last broadcast, wait until all subscribers have it, and note that all is delivered."""
    with app.producer_or_acquire() as producer:
        producer.publish(LAST, exchange=EXCHANGE, declare=[EXCHANGE], retry=True, retry_policy={"max_retries": 100})
    try:
        wait_until(
            lambda: all(one.done or one.error for one in subscribers),
            timeout_s,
            lambda: f"the last broadcast came not to {[one.name for one in subscribers if not one.done]}",
        )
        note(records.DRAINED, queue=EXCHANGE.name)
    finally:
        for one in subscribers:
            one.stop()
    errors = [one.error for one in subscribers if one.error is not None]
    if errors:
        raise errors[0]
