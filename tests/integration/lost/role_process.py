"""A process that plays one role on a broker until it is killed: ROLE URL. Notes in the journal when it does.

Roles: `consumer` and `exclusive` hold a message of `q`, `owner` has the exclusive queue `mine`, `subscriber` holds a broadcast
of the bounded exchange `news`, `publisher` waits for room in the full queue `full`. `joined alone` and `joined single` stand
still behind the join of an exclusive consumer, or of the single active one of `single`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import kombu
import redis

import celery_redis_plus  # noqa: F401 - makes kombu know the URL
from celery_redis_plus.broker.consumers.registry import Consumers
from tests.support.apps import JOURNAL_DB, plain_url

#: A set of the roles that are played.
PLAYED = "played"
NEWS = kombu.Exchange("news", "fanout", durable=True, arguments={"x-max-pending": 1, "x-overflow": "block"})
FULL = kombu.Queue("full", durable=True, queue_arguments={"x-max-length": 1, "x-overflow": "block"})
MINE = kombu.Queue("mine", exclusive=True)
SINGLE = kombu.Queue("single", durable=True, queue_arguments={"x-single-active-consumer": True})


def main(role: str, url: str) -> None:
    journal = redis.Redis.from_url(plain_url(url, JOURNAL_DB))
    connection = kombu.Connection(url, transport_options={"publish_timeout": 600})
    if role == "publisher":
        journal.sadd(PLAYED, role)
        kombu.Producer(connection).publish("of the dead one", routing_key="full", declare=[FULL])
    else:
        consume(role, connection, lambda: journal.sadd(PLAYED, role))


def consume(role: str, connection: kombu.Connection, played: Callable[[], object]) -> None:
    held = []

    def hold(message: kombu.Message) -> None:
        held.append(message)
        played()

    if role.startswith("joined"):
        stand_still_behind_join(played)
    channel = connection.default_channel
    channel.basic_qos(0, 1, False)
    special = {"owner": MINE, "subscriber": kombu.Queue("reader", NEWS), "joined single": SINGLE}
    queue = special.get(role, kombu.Queue("q", durable=True))
    queue(channel).declare()
    channel.basic_consume(queue.name, callback=hold, exclusive=role in {"exclusive", "joined alone"})
    if role == "owner":
        played()
    while True:
        with suppress(TimeoutError):
            connection.drain_events(timeout=1)


def stand_still_behind_join(played: Callable[[], object]) -> None:
    join = Consumers.join

    def joined(*arguments: Any, **options: Any) -> None:
        join(*arguments, **options)
        played()
        signal.pause()

    Consumers.join = joined  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
