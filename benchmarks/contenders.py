"""Who takes part in a run: names, URLs and what each can be asked to do."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
from dataclasses import asdict, dataclass, field
from typing import Any

from kombu import Connection
from kombu.transport import TRANSPORT_ALIASES, get_transport_cls

OURS = "ours"
KOMBU_REDIS = "kombu redis"
FLOOR = "floor"
MEMORY = "memory"
RABBITMQ = "rabbitmq"

#: The order of the report's columns, and of the first round.
ORDER = (KOMBU_REDIS, OURS, RABBITMQ, FLOOR, MEMORY)
#: Those that can serve several processes and Celery's whole feature set.
BROKERS = frozenset({KOMBU_REDIS, OURS, RABBITMQ})
#: Those whose messages live in the server that the run started.
ON_SERVER = frozenset({KOMBU_REDIS, OURS, FLOOR})

#: Celery's queue in a run; not "celery", which a RabbitMQ that is not ours may well have in use.
TASK_QUEUE = "bench.celery"
#: Every queue that a measurement makes on a broker that is not flushed between samples.
AMQP_QUEUES = (
    TASK_QUEUE,
    *("bench.publish", "bench.ping", "bench.close"),
    *(f"bench.consume.{prefetch}" for prefetch in (1, 10, 100)),
    *(f"bench.many.{number}" for number in range(100)),
    *(f"bench.fanout.{number}" for number in range(50)),
)

PACKAGE = "celery_redis_plus"
AMQP_URL_VARIABLE = "CRP_BENCH_AMQP_URL"


@dataclass(frozen=True)
class Contender:
    """One transport under test."""

    name: str
    url: str
    transport_options: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """How it travels to the process of a sample."""
        return asdict(self)


def register_transports() -> None:
    """Make ``floor://`` and, where it is installed, ``redisplus://`` known to kombu."""
    TRANSPORT_ALIASES["floor"] = "benchmarks.floor:Transport"
    if importlib.util.find_spec(PACKAGE) is not None:
        importlib.import_module(PACKAGE)


def discover(server_address: str) -> tuple[list[Contender], dict[str, str]]:
    """All contenders that can run here, and why the others cannot.

    ``server_address`` is ``host:port`` of the server that was started for the run.
    """
    found = [
        Contender(KOMBU_REDIS, f"redis://{server_address}/0"),
        Contender(FLOOR, f"floor://{server_address}/0"),
        Contender(MEMORY, "memory://"),
    ]
    absent: dict[str, str] = {}
    reason = _why_ours_is_missing()
    if reason:
        absent[OURS] = reason
    else:
        found.append(Contender(OURS, f"redisplus://{server_address}/0"))
    amqp_url = _amqp_url()
    if amqp_url:
        found.append(Contender(RABBITMQ, amqp_url, {"confirm_publish": True}))
    else:
        absent[RABBITMQ] = f"nothing listens on port 5672 and {AMQP_URL_VARIABLE} is not set"
    return sorted(found, key=lambda contender: ORDER.index(contender.name)), absent


def _why_ours_is_missing() -> str | None:
    if "redisplus" not in TRANSPORT_ALIASES:
        return f"importing {PACKAGE} registered no transport named redisplus"
    try:
        get_transport_cls("redisplus")
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def delete_amqp_queues(contender: Contender) -> None:
    """Clean a RabbitMQ for the next sample; only queues that carry this benchmark's names."""
    with Connection(contender.url) as connection:
        for queue in AMQP_QUEUES:
            with connection.channel() as channel:
                channel.queue_delete(queue)


def _amqp_url() -> str | None:
    url = os.environ.get(AMQP_URL_VARIABLE)
    if url:
        return url
    try:
        socket.create_connection(("127.0.0.1", 5672), timeout=0.5).close()
    except OSError:
        return None
    return "amqp://guest:guest@127.0.0.1:5672//"
