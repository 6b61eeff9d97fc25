"""An app's messages by id: `message`, `cancel`, `reschedule`, `move`, and a `revoke` that takes them out of the broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.arguments.eta import eta_to_ms
from celery_redis_plus.broker.queues.messages import MESSAGE_ID, MessageInfo, Messages
from celery_redis_plus.errors import OptionError
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.keys import decode_name
from celery_redis_plus.transport.transport import Transport

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)


def message(app: Celery, id: str, *, queue: str | None = None) -> MessageInfo | None:  # noqa: A002 - what users know it by
    """Return where a message stands: its state, place, deliveries and holder; None where nobody knows it.

    It takes a fixed number of commands for each queue that is looked into; for a task id of which no index knows, the delayed
    messages are looked through as well, up to 100,000 a queue. Of a task whose message was moved it tells where that is now.

    Args:
        app: the app; its broker has to be ours.
        id: a message's id (its delivery tag), or Celery's task id. By task id all messages of queues with `event_log_index` are
            found, the last one that was published, and delayed ones of other queues.
        queue: the queue to look into; without one, all that the app or the broker knows.

    Raises:
        OptionError: the app's broker is none of ours.
        redis.exceptions.RedisError: as `translation.translate` names it.
    """
    with _messages(app) as (messages, queues):
        names = [queue] if queue is not None else list(queues())
        moved = None
        # Delayed messages are looked through only for a task that no index knows.
        for tags_of in [_itself] if MESSAGE_ID.fullmatch(id) else [messages.of_task, messages.delayed_of_task]:
            for name in names:
                for tag in tags_of(name, id)[-1:]:
                    found = messages.find(name, tag)
                    if found is not None and found.state != "MOVED":
                        return found
                    moved = moved or found
    return moved


def _itself(_: str, tag: str) -> list[str]:
    return [tag]


def cancel(app: Celery, id: str, *, queue: str | None = None, dead_letter: bool = False) -> bool:  # noqa: A002 - as above
    """Remove a message that nobody has yet, ready or delayed; return whether it was there.

    Args:
        app: see `message`.
        id: see `message`. Delayed messages are found by task id also in queues without an index.
        queue: see `message`.
        dead_letter: make it a dead letter with the reason `cancelled`, instead of removing it for good.
    """
    with _messages(app) as (messages, queues):
        return any(
            messages.cancel(name, _tags(messages, name, id), dead_letter=dead_letter)
            for name in ([queue] if queue is not None else queues())
        )


def reschedule(app: Celery, id: str, when: datetime | timedelta | float, *, queue: str | None = None) -> bool:  # noqa: A002
    """Give a message that nobody has yet another time; return whether it was there.

    Args:
        app: see `message`.
        id: see `cancel`.
        when: the time, or how long from now (timedelta, or seconds).
        queue: see `message`.
    """
    if isinstance(when, datetime):
        eta: int | str = eta_to_ms(when, naive_is_utc=bool(app.conf.enable_utc), tz=app.timezone)
    else:
        seconds = when.total_seconds() if isinstance(when, timedelta) else when
        eta = f"+{max(0, round(seconds * 1000))}"
    with _messages(app) as (messages, queues):
        names = [queue] if queue is not None else queues()
        return any(messages.reschedule(name, tag, eta) for name in names for tag in _tags(messages, name, id))


def move(app: Celery, id: str, target: str, *, queue: str | None = None) -> str | None:  # noqa: A002 - as above
    """Move a message that nobody has yet into the queue `target`; return its id there, None where it was not found.

    Raises:
        QueueNotFound: there is no queue `target`.
    """
    with _messages(app) as (messages, queues):
        for name in [queue] if queue is not None else queues():
            for tag in _tags(messages, name, id):
                moved = messages.move(name, tag, target)
                if moved is not None:
                    return moved
    return None


def _tags(messages: Messages, queue: str, id: str) -> list[str]:  # noqa: A002 - as above
    if MESSAGE_ID.fullmatch(id):
        return [id]
    return messages.of_task(queue, id) or messages.delayed_of_task(queue, id)


@contextmanager
def _messages(app: Celery) -> Iterator[tuple[Messages, Any]]:
    with app.connection_for_write() as connection:
        transport = connection.transport
        if not isinstance(transport, Transport):
            raise OptionError(f"the broker of app {app.main!r} is {connection.as_uri()}; allowed: one of celery-redis-plus")
        connection.connect()
        session = transport.session

        def queues() -> Iterable[str]:
            known = dict.fromkeys(app.amqp.queues)
            names = session.commands.command("ZRANGE", session.keys.queues, "0", "+inf", "BYSCORE")
            return known | dict.fromkeys(decode_name(name) for name in names)

        yield Messages(session.commands, session.keys, dead_letter_max=session.options.dead_letter_max), queues


def install_revoke(app: Celery) -> None:
    """Let `app.control.revoke` take what nobody has yet out of the broker, besides telling the workers; idempotent."""
    wrap(app.control, "revoke", _revoke, app)


def _revoke(revoke: Any, app: Celery, task_id: Any, *args: Any, **kwargs: Any) -> Any:
    ids = [task_id] if isinstance(task_id, str) else list(task_id)
    # The workers first: a message that is claimed between the two is theirs to discard.
    answer = revoke(task_id if isinstance(task_id, str) else ids, *args, **kwargs)
    with _messages(app) as (messages, queues):
        names = list(queues())
        for one in ids:
            if any(messages.cancel(name, _tags(messages, name, one)) for name in names):
                logger.info("task %s is revoked, and its message removed from the broker", one)
    return answer
