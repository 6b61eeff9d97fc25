"""Lets time pass for what is in the queues: `advance`.

The server's clock stays as it is, and with it the clocks of workers and publishers, in whatever process they are. Instead the
stored times of all messages move back, and `eta` and `expires` in their headers: after `advance(60)` a task that was due in a
minute is due now, for the broker and for the worker.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from celery_redis_plus import clock
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.queues.delayed import list_delayed
from celery_redis_plus.broker.queues.limiters import age_limiters
from celery_redis_plus.broker.queues.overview import list_queues
from celery_redis_plus.connection.scans import scan_keys
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.integration.app_broker import connected_shards
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.dead_letter_forwarder import DeadLetterForwarder
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import unreadable
from celery_redis_plus.testing.tested_app import app_of
from celery_redis_plus.transport.stored_json import dump, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery import Celery

    from celery_redis_plus.consumer.publisher_session import PublisherSession

#: Ten years: a message's place keeps its priority.
LONGEST_S = 315_576_000
#: Delayed messages of a queue that are moved.
MOST_DELAYED = 100_000
#: As which the sweeps of a test take a queue over from a worker.
NAME = "celery_redis_plus.testing"


def advance(seconds: float, *, app: Celery | None = None) -> None:
    """Let `seconds` pass for all messages on the broker; what is due by then is ready when this returns.

    Delays, retries, expiries, deduplication times, pauses, rate limits, limiters and the age of dead letters follow. Leases and
    heartbeats do not: a living worker keeps its messages. Nor do the clocks of Python, of Celery (`celery beat`, `rate_limit`)
    and of tracked deliveries, or the time after which an unused queue is deleted. Of a queue the first 100,000 delayed tasks
    follow.

    Args:
        seconds: how many, over 0 and up to ten years.
        app: the app whose broker it is; None: the current one.

    Raises:
        InvalidArgument: `seconds` is out of range.
        OptionError: the app's broker is none of ours.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    if not 0 < seconds <= LONGEST_S:
        raise InvalidArgument(f"argument 'seconds' of advance is {seconds!r}; allowed is a number over 0, up to {LONGEST_S}")
    ms = round(seconds * 1000)
    with connected_shards(app_of(app)) as shards:
        for _, session in shards:
            queues = list_queues(session.commands, session.keys)
            for queue in queues:
                keys = session.keys.queue(queue).state_keys
                session.commands.call(script("advance"), keys, ms, *_envelopes(session, queue, ms))
            _age_deduplication(session, ms)
            age_limiters(session.commands, session.keys, ms)
        for _, session in shards:
            _sweep(session, list_queues(session.commands, session.keys))


def _envelopes(session: PublisherSession, queue: str, ms: int) -> Iterator[str | bytes]:
    """Yield tag and envelope of the delayed tasks, with earlier times in their headers: Celery's workers wait for an eta, too."""
    for message in list_delayed(session.commands, session.keys, queue, MOST_DELAYED).messages:
        try:
            envelope = load(message.envelope)
            headers = envelope.get("headers") or {}
            times = {name: headers[name] for name in ("eta", "expires") if isinstance(headers.get(name), str)}
            for name, value in times.items():
                headers[name] = (datetime.fromisoformat(value) - timedelta(milliseconds=ms)).isoformat()
        except Exception as error:  # noqa: BLE001 - whatever reading it raises: it is no task whose time could be changed
            unreadable(error)
            continue
        if "eta" in times and message.eta_ms - ms <= server_ms(session.commands):
            # It is due: a worker need not look at the time again.
            headers["eta"] = None
        if times:
            yield message.tag
            yield dump(envelope)


def _age_deduplication(session: PublisherSession, ms: int) -> None:
    """Shorten the keys that stand for an `x-deduplication-id`: these the server forgets by itself."""
    commands = session.commands
    for page in scan_keys(commands, session.keys.queue("*").dedup + b"*"):
        left = commands.ask([("PTTL", key) for key in page])
        commands.ask([("PEXPIRE", key, max(0, int(ttl) - ms)) for key, ttl in zip(page, left, strict=True)])


def _sweep(session: PublisherSession, queues: Sequence[str]) -> None:
    """Do what the maintenance of a worker would: promote, expire, forward dead letters."""
    options, commands, keys = session.options, session.commands, session.keys
    limits = SweepLimits(options.visibility_timeout, options.delivery_limit, options.dead_letter_max, options.dead_letter_ttl)
    tasks = session.service.tasks
    letters = DeadLetters(commands, keys)
    forwarder = DeadLetterForwarder(letters, session.queues, session.bindings, lambda: tasks.elsewhere)
    sweeper = Sweeper(commands, keys, ConsumedQueues(), name=NAME, limits=limits, forward=forwarder.forward_soon)
    sweeper.watch(queues)
    for queue in queues:
        sweeper.run_soon(queue)
    while sweeper.next_run_at <= clock.now_s():
        sweeper.run()
    while forwarder.next_run_at <= clock.now_s():
        forwarder.run()
    # Workers take their queues over again, and sleep until what is due next by now.
    for queue in queues:
        commands.command("ZADD", keys.queue(queue).schedule_wakeup, 0, "due")
