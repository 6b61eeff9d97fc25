"""Queue lengths for Flower, whose page "Broker" and `/api/queues/length` choose a client by the scheme of the broker's URL.

`flower.utils.broker.Broker` (Flower 2.0 to 2.2) knows the schemes of kombu's own transports, and answers 404 for ours.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from kombu import Connection

from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.overview import read_overviews
from celery_redis_plus.errors import ShardUnreachable
from celery_redis_plus.integration import compat
from celery_redis_plus.transport.url_schemes import leads_to_us

logger = logging.getLogger(__name__)

#: The module that Flower's pages take their broker from.
FLOWER = "flower.utils.broker"


class FlowerBroker:
    """Reads queues for Flower, over a connection of its own for each question.

    Args:
        broker_url: with its password.
        broker_options, broker_use_ssl: the app's transport options and TLS.
        _: the address of RabbitMQ's management.
    """

    def __init__(self, broker_url: str, *, broker_options: Any = None, broker_use_ssl: Any = None, **_: Any) -> None:
        self._url = broker_url
        self._options = broker_options
        self._ssl = broker_use_ssl
        self._failures = KeyFailures(logger, "cannot be read")

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the lengths of those of the queues that exist, by the names that RabbitMQ's management has for them.

        `messages` has the delayed ones, too: ready, delayed and unacked. One whose keys cannot be read is left out, and logged.
        Raises as `read_overview` does.
        """
        return await asyncio.get_running_loop().run_in_executor(None, lambda: list(self._read(list(names))))

    def _read(self, names: list[str]) -> Iterator[dict[str, Any]]:
        with Connection(self._url, transport_options=self._options, ssl=self._ssl) as connection:
            channel = connection.default_channel
            for name in names:
                try:
                    session = channel.of_queue(name).session
                except ShardUnreachable as error:
                    logger.warning("queue %r is left out: %s", name, error, extra={"queue": name})
                    continue
                for queue in read_overviews(session.commands, session.keys, [name], self._failures):
                    yield {
                        "name": name,
                        "messages": queue.ready + queue.delayed + queue.unacked,
                        "messages_ready": queue.ready,
                        "messages_unacknowledged": queue.unacked,
                        "consumers": queue.consumers,
                    }


def install_flower_broker() -> None:
    """Have Flower's factory of brokers make a `FlowerBroker` for our URLs; idempotent."""
    factory = compat.FLOWER_BROKER.of(sys.modules[FLOWER])
    if factory is None or hasattr(factory, "crp_knows_our_urls"):
        return
    others = factory.__new__

    def new(cls: Any, broker_url: str, *args: Any, **kwargs: Any) -> Any:
        if leads_to_us(broker_url.partition("://")[0].partition("+")[0].lower()):
            return FlowerBroker(broker_url, **kwargs)
        return others(cls, broker_url, *args, **kwargs)

    factory.__new__ = new
    factory.crp_knows_our_urls = True
