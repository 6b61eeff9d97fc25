"""What this process noticed of its broadcasts and its broker, as signals: `connect` adds a callback.

Everything that is noticed here is also logged; a callback is for a program that has to act on it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger(__name__)


class Missed(NamedTuple):
    """A subscriber missed broadcasts: the stream was trimmed beyond its cursor, or restarted.

    Attributes:
        queue, exchange: whose broadcasts.
        count: how many; None if the stream restarted, since the number is unknown then.
        after: id of the last entry before the gap, '0-0' where there was none.
        until: id of the first entry after it, '' where none has come yet.
    """

    queue: str
    exchange: str
    count: int | None  # type: ignore[assignment]  # in place of a method of tuples
    after: str
    until: str


class SubscriberDied(NamedTuple):
    """A subscriber of a fanout exchange gave no sign of life for `subscriber_timeout` and its second chance.

    Attributes:
        queue, exchange: whose broadcasts. subscriber: its id in the registry. host: where it ran, as `host:pid`.
        unread: how many broadcasts it had not reported as processed, once a second: at most so many were not. 0 for a reader of a
        durable subscriber, which keeps its cursor. cursor: id of the last entry that it had reported.
        at_ms: when it was declared dead, ms since the epoch (server's clock).
    """

    queue: str
    exchange: str
    subscriber: str
    host: str
    unread: int
    cursor: str
    at_ms: int


class BrokerLost(NamedTuple):
    """A connection to the broker at `address` failed: its consumers and publishers reconnect."""

    address: str


class BrokerBack(NamedTuple):
    """The broker at `address` answers again."""

    address: str


Signal = Missed | SubscriberDied | BrokerLost | BrokerBack
Callback = Callable[[Signal], object]

_callbacks: list[Callback] = []
_lost: set[str] = set()
_lock = threading.Lock()


def _renew_lock() -> None:
    """Give a forked child a lock that no thread of its parent holds. Below `connection.forks`, which does so for all others."""
    global _lock  # noqa: PLW0603 - the module is the owner
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def connect(callback: Callback) -> Callable[[], None]:
    """Call `callback` with every signal of this process from now on; return a function that ends it.

    It is called in the thread that noticed, so it has to be short. What it raises is logged.
    """
    _callbacks.append(callback)

    def end() -> None:
        if callback in _callbacks:
            _callbacks.remove(callback)

    return end


def connected() -> bool:
    """Return whether anybody listens."""
    return bool(_callbacks)


def notify(signal: Signal) -> None:
    """Call every connected callback."""
    for callback in tuple(_callbacks):
        try:
            callback(signal)
        except Exception:
            logger.exception("a callback for signals of celery-redis-plus failed on %r", signal)


def broker_lost(address: str) -> None:
    """Note that a connection to `address` failed; only the first one of several tells."""
    with _lock:
        known = address in _lost
        _lost.add(address)
    if not known:
        notify(BrokerLost(address))


def broker_reached(address: str) -> None:
    """Note that `address` answers; tells only where it was lost before."""
    if address not in _lost:
        return
    with _lock:
        known = address in _lost
        _lost.discard(address)
    if known:
        notify(BrokerBack(address))
