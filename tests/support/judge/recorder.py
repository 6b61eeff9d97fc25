"""Writes the record of a run: each process its own file, in the folder that the environment names; nothing where it names none.

`install` makes a process's publishes, deliveries, settlements and lost sessions part of it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any

import kombu
from kombu.utils.json import loads

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import UnackedMessage, UnackedMessages
from celery_redis_plus.consumer.publisher_session import PublisherSession
from celery_redis_plus.errors import PublishRefused
from celery_redis_plus.transport.channel import Channel
from celery_redis_plus.transport.qos import QoS
from tests.support.judge import records
from tests.support.judge.records import Record

VARIABLE = "CRP_JUDGE_RECORD"
#: Exchanges and queues whose messages are Celery's own business.
OWN = ("pidbox", "celeryev", "reply")

_lock = threading.Lock()
_opened: tuple[int, str, int] = (0, "", -1)
#: Queue -> the exchanges to which this process has bound it.
_exchanges: dict[str, set[str]] = {}
#: Exchange -> its type, of those that this process has declared.
_types: dict[str, str] = {}
#: Tag -> when this process asked for what brought the message, in ticks; of those that wait for their delivery.
_asked: dict[str, float] = {}


def note(kind: str, *, process: int = 0, tick: float = 0.0, **values: Any) -> None:
    """Write a record, if this run has one; `process` is this one by default, `tick` is now."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    record = Record(kind, tick or time.monotonic(), process or os.getpid(), time=time.time(), **values)
    # One write a line: SIGKILL leaves whole lines.
    os.write(_file(folder), record.line())


def _file(folder: str) -> int:
    global _opened  # noqa: PLW0603 - a process has one file
    pid = os.getpid()
    if _opened[:2] != (pid, folder):
        with _lock:
            if _opened[:2] != (pid, folder):
                path = Path(folder) / f"{pid}-{time.monotonic_ns()}"
                _opened = (pid, folder, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    return _opened[2]


# ---- hooks


def install() -> None:
    """Record what this process publishes and consumes, from now on; for processes that a test starts."""
    if os.environ.get(VARIABLE):
        for owner, name, hook in _HOOKS:
            _wrap(owner, name, hook)


@contextmanager
def recording() -> Iterator[None]:
    """Record what this process publishes and consumes, within the block."""
    plain = [(owner, name, getattr(owner, name)) for owner, name, _ in _HOOKS]
    install()
    try:
        yield
    finally:
        for owner, name, function in plain:
            setattr(owner, name, function)


def _wrap(owner: type, name: str, hook: Callable[..., Any]) -> None:
    plain = getattr(owner, name)

    @wraps(plain)
    def hooked(self: Any, *arguments: Any, **named: Any) -> Any:
        return hook(plain, self, *arguments, **named)

    setattr(owner, name, hooked)


def _publish(plain: Callable[..., Any], producer: kombu.Producer, body: Any, *arguments: Any, **named: Any) -> Any:
    exchange = named.get("exchange") or producer.exchange
    exchange_name = exchange if isinstance(exchange, str) else exchange.name
    routing_key = named.get("routing_key") or (arguments[0] if arguments else None) or producer.routing_key or ""
    if any(own in exchange_name or own in routing_key for own in OWN):
        return plain(producer, body, *arguments, **named)
    headers = named.get("headers") or {}
    detail: dict[str, Any] = {"priority": named.get("priority"), "task": headers.get("task")}
    if _types.get(exchange_name, getattr(exchange, "type", "")) == "fanout":
        detail["exchange"] = exchange_name
    elif exchange_name:
        detail.update(via=exchange_name, key=routing_key)
    detail["expires"] = headers.get("expires") is not None or named.get("expiration") is not None
    if "x-deduplication-id" in headers:
        detail["dedup"] = headers["x-deduplication-id"]
        detail["scope"] = headers.get("x-deduplication-scope", "ttl")
        detail["ttl_s"] = headers.get("x-deduplication-ttl", 86_400_000) / 1000
    detail.update(group=headers.get("x-message-group"), limiter=headers.get("x-limiter"))
    delay_ms = headers.get("x-delay")
    if delay_ms:
        detail["eta"] = time.time() + delay_ms / 1000
    elif headers.get("eta"):
        detail["eta"] = _seconds(headers["eta"])
    connection = producer.__connection__
    detail["replicas"] = connection and connection.transport_options.get("wait_replicas")
    name, queue = _name(body, headers), routing_key or exchange_name
    note(records.PUBLISH, detail={key: value for key, value in detail.items() if value}, name=name, queue=queue)
    try:
        reply = plain(producer, body, *arguments, **named)
    except PublishRefused:
        note(records.REFUSED, name=name, queue=queue)
        raise
    except BaseException:
        note(records.UNKNOWN, name=name, queue=queue)
        raise
    note(records.CONFIRMED, name=name, queue=queue)
    return reply


def _deliver(plain: Callable[..., Any], qos: QoS, message: Any, unacked: Any) -> None:
    plain(qos, message, unacked)
    info = message.delivery_info or {}
    exchange = str(info.get("exchange") or "")
    if any(own in exchange for own in OWN):
        return
    queued = isinstance(unacked, UnackedMessage)
    detail: dict[str, Any] = {"exchange": exchange}
    if queued:
        detail = {
            "priority": message.properties.get("priority") or 0,
            # When the server last said that this process has it: a message may wait in a buffer first.
            "confirmed_s_ago": round(clock.now_s() - unacked.confirmed_at, 3),
            "asked_at": _asked.pop(unacked.tag, None),
        }
    note(
        records.DELIVERED,
        name=_name_of(message),
        queue=unacked.queue if queued else message.queue or "",
        tag=unacked.tag,
        claim=unacked.claim if queued else 0,
        session=unacked.session if queued else _session_of(qos).id,
        redelivered=bool(info.get("redelivered")),
        detail=detail,
    )


#: A settlement -> its kind.
_KINDS = {
    Settlement.ACK: records.ACKED,
    Settlement.REJECT: records.REJECTED,
    Settlement.REQUEUE: records.REQUEUED,
    Settlement.FAIL: records.REQUEUED,
}


def _settle(plain: Callable[..., Any], qos: QoS, tag: str, settlement: Settlement) -> None:
    _note_settled(qos, tag, _KINDS.get(settlement, records.RELEASED))
    plain(qos, tag, settlement)


def _leave(plain: Callable[..., Any], qos: QoS, tag: str) -> None:
    _note_settled(qos, tag, records.RELEASED)
    plain(qos, tag)


def _give_back(plain: Callable[..., Any], qos: QoS, delivered: Any) -> None:
    given = list(delivered)
    for unacked in given:
        _note_settled(qos, unacked.tag, records.RELEASED)
    plain(qos, given)


def _note_settled(qos: QoS, tag: str, kind: str) -> None:
    own = _session_of(qos)
    unacked = own.service.unacked_messages.find(tag)
    session = unacked.session if isinstance(unacked, UnackedMessage) else own.id
    note(kind, tag=tag, session=session)


def _session_of(qos: QoS) -> PublisherSession:
    channel = qos.channel
    assert isinstance(channel, Channel)
    return channel.session


def _claimed(plain: Callable[..., Any], unacked_messages: UnackedMessages, messages: Any, session: str, asked_at: float) -> Any:
    fresh = plain(unacked_messages, messages, session, asked_at)
    # In this order: never later than it was.
    now = time.monotonic()
    asked = now - (clock.now_s() - asked_at)
    _asked.update((unacked.tag, asked) for unacked in fresh)
    return fresh


def _lost(plain: Callable[..., Any], unacked_messages: UnackedMessages, tag: str, *arguments: Any) -> Any:
    lost = plain(unacked_messages, tag, *arguments)
    if lost is not None:
        note(records.LOST, tag=tag, session=lost.session)
    return lost


def _disconnected(plain: Callable[..., Any], session: PublisherSession, *arguments: Any, **named: Any) -> Any:
    if not session.broken:
        note(records.DISCONNECTED, session=session.id)
    return plain(session, *arguments, **named)


def _declare(plain: Callable[..., Any], channel: Channel, *arguments: Any, **named: Any) -> Any:
    reply = plain(channel, *arguments, **named)
    name, given = named.get("queue") or (arguments[0] if arguments else ""), named.get("arguments") or {}
    if given and name:
        note(records.DECLARED, queue=name, detail={key: value for key, value in given.items() if key.startswith("x-")})
    return reply


def _bind(
    plain: Callable[..., Any], channel: Channel, queue: str, exchange: str | None = None, *arguments: Any, **named: Any
) -> Any:
    _exchanges.setdefault(queue, set()).add(exchange or "")
    reply = plain(channel, queue, exchange, *arguments, **named)
    kind = _types.get(exchange or "", "")
    if kind in {"direct", "topic"} and not any(own in queue for own in OWN):
        key = named.get("routing_key") or (arguments[0] if arguments else "") or ""
        note(records.BOUND, queue=queue, detail={"exchange": exchange, "type": kind, "key": key})
    return reply


def _declare_exchange(
    plain: Callable[..., Any], channel: Channel, exchange: str = "", kind: str = "direct", *arguments: Any, **named: Any
) -> Any:
    kind = named.pop("type", kind)
    reply = plain(channel, exchange, kind, *arguments, **named)
    if not named.get("passive"):
        _types[exchange] = kind
    return reply


def _consume(plain: Callable[..., Any], channel: Channel, queue: str, *arguments: Any, **named: Any) -> Any:
    reply = plain(channel, queue, *arguments, **named)
    if not any(own in queue for own in OWN):
        detail = {"exchanges": sorted(_exchanges.get(queue, ()))}
        note(records.CONSUMING, queue=queue, session=channel.session.id, detail=detail)
    return reply


def _cancel(plain: Callable[..., Any], channel: Channel, *arguments: Any, **named: Any) -> Any:
    note(records.CANCELLED, session=channel.session.id)
    return plain(channel, *arguments, **named)


_HOOKS: tuple[tuple[type, str, Callable[..., Any]], ...] = (
    (kombu.Producer, "publish", _publish),
    (QoS, "deliver", _deliver),
    (QoS, "settle", _settle),
    (QoS, "leave", _leave),
    (QoS, "give_back", _give_back),
    (UnackedMessages, "add", _claimed),
    (UnackedMessages, "mark_lease_lost", _lost),
    (PublisherSession, "fail", _disconnected),
    (PublisherSession, "abandon", _disconnected),
    (Channel, "queue_declare", _declare),
    (Channel, "exchange_declare", _declare_exchange),
    (Channel, "queue_bind", _bind),
    (Channel, "basic_consume", _consume),
    (Channel, "basic_cancel", _cancel),
    (Channel, "close", _cancel),
)


# ---- names


def _name(body: Any, headers: dict[str, Any]) -> str:
    """Return the name of a message: a task's first argument, its id, or the body."""
    if "task" in headers and isinstance(body, list | tuple) and body:
        arguments = body[0]
        return str(arguments[0]) if arguments else str(headers.get("id"))
    return body if isinstance(body, str) else str(body)[:200]


def _name_of(message: Any) -> str:
    headers = message.headers or {}
    body = message.body
    if message.content_type == "application/json":
        body = loads(body)
    elif isinstance(body, bytes):
        body = body.decode(errors="replace")
    return _name(body, headers)


def _seconds(eta: str) -> float:
    from celery.utils.iso8601 import parse_iso8601

    moment: datetime = parse_iso8601(eta)
    return moment.timestamp()
