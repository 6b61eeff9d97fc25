"""Lets tests of behaviour run that reach for kombu's names on the way: each stand-in does on ours what the name means."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.janitor import Janitor
from celery_redis_plus.transport.channel import Channel
from celery_redis_plus.transport.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    import redis

#: In the tests, an exchange and its queue have one name.
_VANISHES_S = 10.0


def install(modules: Iterable[ModuleType]) -> None:
    """Put the stand-ins into our channel and into the test modules of this process."""
    # Celery's half-open tests assert that a blocking call is outstanding before they cut it off.
    _put(Channel, {"_in_poll": property(_outstanding_call), "sweep_bindings": _clear_away})
    for module in modules:
        if hasattr(module, "Transport"):  # imported from kombu, to look at its error classes
            _put(module, {"Transport": Transport})
        if hasattr(module, "test_RedisQueueExpiration"):
            helpers: dict[str, Any] = {
                "_binding_key": _binding_key,
                "_deadline": _deadline,
                "_make_overdue": _make_overdue,
            }
            for name, helper in helpers.items():
                _put(module.test_RedisQueueExpiration, {name: staticmethod(helper)})


def _put(target: object, attributes: Mapping[str, object]) -> None:
    for name, value in attributes.items():
        setattr(target, name, value)


def _outstanding_call(channel: Channel) -> tuple[bytes, ...]:
    return channel.consumer_session.waiter.waiting


def _clear_away(channel: Channel) -> None:
    """Do what the janitor of another worker does every half minute, and let an hour pass.

    So long an exchange without bindings keeps its version, and nothing else, to tell that they were removed and not lost.
    """
    session = channel.session
    bindings = Bindings(session.commands, session.keys)
    queues = Queues(session.commands, session.keys, transient_ttl_s=session.options.transient_queue_ttl)
    Janitor(queues, bindings, ConsumedQueues()).clear()
    for exchange in bindings.names():
        key = session.keys.binding(exchange)
        if session.commands.command("HKEYS", key) == [b"version"] and session.commands.command("PTTL", key) > 0:
            session.commands.command("DEL", key)


def _keys(connection: Any) -> Keys:
    return Keys(connection.transport_options.get("global_keyprefix", ""))


def _binding_key(connection: Any, exchange: str) -> bytes:
    return _keys(connection).binding(exchange)


def _deadline(connection: Any, redis_client: redis.Redis, exchange: str) -> float | None:
    """When the list of queues wants the queue to be looked at; below 0 it only remembers that there was one."""
    deadline: Any = redis_client.zscore(_keys(connection).queues.decode(), exchange)
    return None if deadline is None or deadline < 0 else float(deadline)


def _make_overdue(connection: Any, redis_client: redis.Redis, exchange: str) -> None:
    """Wait until nobody has used the queue for as long as it lives, and have it looked at."""
    keys = _keys(connection)
    give_up_at = time.monotonic() + _VANISHES_S
    while redis_client.exists(keys.queue(exchange).meta) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    redis_client.zadd(keys.queues.decode(), {exchange: 1})
