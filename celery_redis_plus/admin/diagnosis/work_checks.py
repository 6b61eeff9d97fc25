"""The checks of queues in use: full ones, and messages that a consumer has had for long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from celery_redis_plus.admin.diagnosis.finding import ADVICE, DANGER, OK, Finding
from celery_redis_plus.admin.diagnosis.naming import named, operand
from celery_redis_plus.admin.formatting import span
from celery_redis_plus.admin.holders import read_holders
from celery_redis_plus.broker.queues.held import read_held
from celery_redis_plus.connection.server_time import server_ms

if TYPE_CHECKING:
    from celery_redis_plus.admin.diagnosis.examined_broker import ExaminedBroker
    from celery_redis_plus.broker.queues.overview import QueueOverview

#: The part of a limit from which on a queue is about to be full.
NEARLY_FULL = 0.9
#: A message that a consumer has had for so long may belong to a task that hangs, in seconds.
STUCK_S = 3_600


def limits(broker: ExaminedBroker) -> Iterator[Finding]:
    """Queues that are full, or nearly, with what `x-overflow` does then."""
    found = [one for one in broker.overviews if (one.full or 0) >= NEARLY_FULL]
    yield from named(_limit(one) for one in sorted(found, key=lambda one: -(one.full or 0)))
    if not found:
        limited = sum(1 for one in broker.overviews if one.full is not None)
        yield Finding("limits", OK, f"{limited:,} queue(s) have a limit, none of them is full")


def _limit(one: QueueOverview) -> Finding:
    tightest = max((use for use in one.limits if use.part == one.full), key=lambda use: use.part)
    is_full = tightest.part >= 1
    overflow = str(one.arguments.get("x-overflow", "drop-head"))
    what = {
        "drop-head": "the oldest messages are dropped",
        "reject-publish": "publishes are refused",
        "reject-publish-dlx": "publishes are refused, and become dead letters",
        "block": "publishers wait",
    }.get(overflow, f"x-overflow is {overflow}")
    state = "is full" if is_full else "is nearly full"
    used = f"{tightest.used:,} of {tightest.most:,} ({tightest.name})"
    text = f"queue {one.queue!r} {state}: {used}; {'' if is_full else 'then '}{what}"
    text += f"; it has refused {one.rejected:,} publish(es) since it was declared" if one.rejected else ""
    advice = f"Add consumers; see `queue {operand(one.queue)}` for what it holds and who consumes it."
    values = {"queue": one.queue, "limit": tightest.name, "used": tightest.used, "most": tightest.most, "overflow": overflow}
    return Finding("limits", DANGER if is_full else ADVICE, text, advice, {**values, "rejected": one.rejected})


def stuck(broker: ExaminedBroker) -> Iterator[Finding]:
    """Messages that a consumer has had for over an hour: a task hangs."""
    now_ms = server_ms(broker.commands)
    found = [finding for one in broker.overviews if one.unacked for finding in _stuck(broker, one.queue, now_ms)]
    yield from named(sorted(found, key=lambda one: -one.values["held_s"]))
    if not found:
        yield Finding("stuck", OK, f"no consumer has a message for more than {span(STUCK_S)}")


def _stuck(broker: ExaminedBroker, queue: str, now_ms: int) -> Iterator[Finding]:
    old = [
        (now_ms - one.claimed_ms, one)
        for _, page in read_held(broker.commands, broker.keys, queue)
        for one in page
        if one.claimed_ms is not None and now_ms - one.claimed_ms > STUCK_S * 1000
    ]
    if not old:
        return
    held_ms, longest = max(old, key=lambda one: one[0])
    holder = read_holders(broker.commands, broker.keys, queue).get(longest.session)
    text = f"{len(old):,} message(s) of queue {queue!r} are held for more than {span(STUCK_S)}: "
    text += f"{longest.tag} for {span(held_ms / 1000)}"
    text += f", by {holder}" if holder else ""
    advice = f"See `why {longest.tag}`; if its task hangs, end that worker, or `messages kick` the message."
    values = {"queue": queue, "messages": len(old), "id": longest.tag, "held_s": round(held_ms / 1000, 1)}
    yield Finding("stuck", ADVICE, text, advice, {**values, "host": holder and holder.host, "pid": holder and holder.pid})
