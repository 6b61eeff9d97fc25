"""An app's messages by id: `message`, `cancel`, `reschedule`, `move`, and a `revoke` that takes them out of the broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from celery_redis_plus.broker.arguments.eta import MAX_DELAY_MS, eta_to_ms
from celery_redis_plus.broker.queues.audit import Audit
from celery_redis_plus.broker.queues.message_search import WAITING, MessageSearch
from celery_redis_plus.broker.queues.messages import MessageInfo, Messages
from celery_redis_plus.broker.queues.overview import list_queues
from celery_redis_plus.errors import InvalidArgument, InvalidEta, ShardUnreachable
from celery_redis_plus.integration.app_broker import connected_shards
from celery_redis_plus.integration.patching import wrap
from celery_redis_plus.integration.revoked_results import mark_revoked
from celery_redis_plus.shards.by_queue import ShardMessages

if TYPE_CHECKING:
    from celery import Celery

    from celery_redis_plus.broker.queues.listing import State

logger = logging.getLogger(__name__)


def message(app: Celery, id: str, *, queue: str | None = None) -> MessageInfo | None:  # noqa: A002 - what users know it by
    """Return where a message stands: its state, place, deliveries and holder; None where it is unknown.

    It takes a fixed number of commands for each queue that is looked into. For a task id of which no index knows, each message is
    looked at, which takes a second for 100,000. Of a task whose message was moved it tells where that is now.

    Args:
        app: the app; its broker has to be ours.
        id: a message's id, or Celery's task id; of several messages of a task the last one is meant.
        queue: the queue to look into; without one, all that the app or the broker knows.

    Raises:
        InvalidArgument: the task id is not among 200,000 messages, there are more, and `queue` is not given.
        OptionError: the app's broker is none of ours.
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    with _search(app) as search:
        return search.find(id, queue)


def cancel(app: Celery, id: str, *, queue: str | None = None, dead_letter: bool = False) -> bool:  # noqa: A002 - as above
    """Remove a message that no consumer has yet, ready or delayed; return whether it was there.

    The result of a task becomes REVOKED, and its chord or group hears of it.

    Args:
        app: see `message`.
        id: see `message`.
        queue: see `message`.
        dead_letter: make it a dead letter with the reason `cancelled`, instead of removing it for good.
    """
    with _search(app) as search:
        return search.cancel(id, queue, dead_letter=dead_letter, on_removed=partial(mark_revoked, app))


def reschedule(app: Celery, id: str, when: datetime | timedelta | float, *, queue: str | None = None) -> bool:  # noqa: A002
    """Give a message that no consumer has yet another time; return whether it was there.

    Args:
        app: see `message`.
        id: see `cancel`.
        when: the time, or how long from now (timedelta, or seconds).
        queue: see `message`.

    Raises:
        InvalidEta: `when` is over a hundred years from now, after November 2286, or no number.
    """
    if isinstance(when, datetime):
        eta: int | str = eta_to_ms(when, naive_is_utc=bool(app.conf.enable_utc), tz=app.timezone)
    else:
        seconds = when.total_seconds() if isinstance(when, timedelta) else when
        if not seconds <= MAX_DELAY_MS / 1000:
            raise InvalidEta(f"the new time {when!r:.100} is out of range; allowed is up to {MAX_DELAY_MS // 1000} s from now")
        eta = f"+{round(max(0, seconds) * 1000)}"
    with _search(app) as search:
        return search.reschedule(id, eta, queue)


def move(app: Celery, id: str, target: str, *, queue: str | None = None) -> str | None:  # noqa: A002 - as above
    """Move a message that no consumer has yet into the queue `target`; return its id there, None where it was not found.

    Raises:
        QueueNotFound: there is no queue `target`.
    """
    with _search(app) as search:
        return search.move(id, target, queue)


@contextmanager
def _search(app: Celery, waiting: Sequence[State] = WAITING) -> Iterator[MessageSearch]:
    with connected_shards(app) as shards:
        sessions = [session for _, session in shards]

        @cache
        def queues() -> Iterable[str]:
            listed = [queue for session in sessions for queue in list_queues(session.commands, session.keys)]
            return dict.fromkeys(app.amqp.queues) | dict.fromkeys(listed)

        found = [Messages(one.commands, one.keys, dead_letter_max=one.options.dead_letter_max) for one in sessions]
        audit = Audit(sessions[0].commands, sessions[0].keys)
        messages = found[0] if len(found) == 1 else cast("Messages", ShardMessages(found))
        yield MessageSearch(messages, queues, waiting, audit=audit)


def install_revoke(app: Celery) -> None:
    """Let `app.control.revoke` take messages that no consumer has out of the broker, besides telling the workers; idempotent."""
    wrap(app.control, "revoke", _revoke, app)


def _revoke(revoke: Any, app: Celery, task_id: Any, *args: Any, **kwargs: Any) -> Any:
    ids = [task_id] if isinstance(task_id, str) else list(task_id)
    # The workers first: a message that is claimed between the two is theirs to discard.
    answer = revoke(task_id if isinstance(task_id, str) else ids, *args, **kwargs)
    # Not the ready ones without an index: a worker is about to have them, and to discard them, and a look at all takes seconds.
    try:
        with _search(app, ("delayed",)) as search:
            for one in ids:
                _remove_revoked(app, search, one)
    except ShardUnreachable as error:
        # As below.
        logger.warning("revoked at the workers only: %s", error)
    return answer


def _remove_revoked(app: Celery, search: MessageSearch, task_id: str) -> None:
    try:
        removed = search.cancel(task_id, on_removed=partial(mark_revoked, app))
    except InvalidArgument as error:
        # So many are delayed. Where one is, its worker discards it when it is due.
        logger.warning("revoked at the workers only: %s", error)
        return
    if removed:
        logger.info("task %s is revoked, and its message removed from the broker", task_id, extra={"task_id": task_id})
