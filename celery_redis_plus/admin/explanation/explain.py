"""Puts the parts of an explanation together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_redis_plus.admin.explanation.attempts import Attempt, attempts, told
from celery_redis_plus.admin.explanation.cause import Cause
from celery_redis_plus.admin.explanation.causes import causes
from celery_redis_plus.admin.explanation.facts import Facts, read_facts
from celery_redis_plus.admin.formatting import span
from celery_redis_plus.admin.holders import read_holders

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.messages import MessageInfo, Messages
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.options import Options

#: The states that `MessageInfo` has of a message in a place.
STATES: Final = {
    "ready": ("PENDING",),
    "held": ("PENDING",),
    "delayed": ("DELAYED", "RETRYABLE"),
    "claimed": ("PROCESSING",),
    "forwarded": ("DEAD",),
    "dead": ("DEAD",),
}
#: Units of rates, in seconds.
UNITS: Final = (("a second", 1), ("a minute", 60), ("an hour", 3_600))
#: How often a message is looked for that changes its place between two looks.
TRIES: Final = 3
#: Messages of the same task that are looked at.
MOST_OF_TASK: Final = 10


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a message is where it is.

    Attributes:
        message: what is known of it.
        causes: the reasons, the strongest first; at least one.
        deliveries: how often it was delivered and why again, in one line; '' for the first time.
        attempts: its deliveries, where its queue's event log has them.
        turn_s: seconds until it is delivered, at the present rate; None where that cannot be told.
        turn: the same for people, or why it cannot be told; '' for a message that does not wait.
    """

    message: MessageInfo
    causes: Sequence[Cause]
    deliveries: str
    attempts: Sequence[Attempt]
    turn_s: float | None
    turn: str


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a queue's messages are delivered.

    Attributes:
        per_s: deliveries a second.
        over_s: in how many seconds that was counted.
    """

    per_s: float
    over_s: float


def explain(
    commands: CommandConnection, keys: Keys, options: Options, messages: Messages, queue: str, tag: str, *,
    rate: Rate | None = None,
) -> Explanation | None:  # fmt: skip
    """Return why a message is where it is, by what the broker says now; None where its queue knows nothing of it.

    Args:
        commands: the connection to its broker.
        keys: spells the keys.
        options: of the connection.
        messages: of the same broker.
        queue: its queue.
        tag: its id.
        rate: of its queue; without it there is no estimate.

    Raises:
        redis.exceptions.RedisError: as `error_translation.translate` names it.
    """
    holders = read_holders(commands, keys, queue)
    tries = TRIES
    while True:
        found = messages.find(queue, tag)
        if found is None:
            return None
        facts, tries = read_facts(commands, keys, found, holders), tries - 1
        agree = found.state in STATES.get(facts.place, ()) or not (facts.place or found.stands)
        if agree or not tries:
            break
    deliveries = list(attempts(found.events))
    reasons = [*causes(facts, silent_s=options.consumer_heartbeat_timeout), *_of_task(messages, found)]
    turn_s, turn = _turn(facts, rate)
    return Explanation(found, reasons, told(facts, deliveries), deliveries, turn_s, turn)


def _of_task(messages: Messages, found: MessageInfo) -> list[Cause]:
    """Return what the index knows of further messages of the same task: each of them runs it."""
    tags: list[str] = []
    # JSON can write a surrogate of its own, UTF-8 cannot: no index has such an id.
    with suppress(UnicodeEncodeError):
        tags = [] if found.task_id is None else messages.of_task(found.queue, found.task_id)
    others = [one for tag in tags[-MOST_OF_TASK:] if tag != found.id and (one := messages.find(found.queue, tag)) is not None]
    if not others:
        return []
    listed = ", ".join(f"{one.id} ({one.state})" for one in others)
    text = f"its task has {len(tags):,} messages here, each of which runs it: this one, and {listed}"
    return [Cause("several_messages", text, {"ids": [one.id for one in others], "count": len(tags)})]


def _turn(facts: Facts, rate: Rate | None) -> tuple[float | None, str]:
    """Return when the message is delivered, if nothing comes before it."""
    if facts.place not in ("ready", "held", "limited", "delayed"):
        return None, ""
    until = facts.of_queue("paused_until")
    if not facts.live or (facts.is_paused and not until):
        return None, "not before its queue has a consumer" if not facts.live else "not before its queue is resumed"
    earliest_s = max((until - facts.now_ms) / 1000, 0.0) if facts.is_paused else 0.0
    if facts.place == "delayed":
        earliest_s = max(earliest_s, (facts.score_ms - facts.now_ms) / 1000)
        return None, f"not before {span(max(earliest_s, 0.0))} from now, and then behind what is ready before it"
    if facts.place == "held":
        return None, "when its group has its turn, or has less in work"
    if facts.place == "limited":
        earliest_s = max(earliest_s, (facts.limited_until - facts.now_ms) / 1000)
        return None, f"not before {span(earliest_s)} from now, and behind those that wait for its limiter"
    return _at_rate(facts, earliest_s, rate)


def _at_rate(facts: Facts, earliest_s: float, rate: Rate | None) -> tuple[float | None, str]:
    if rate is None:
        return None, ""
    if rate.per_s <= 0:
        return None, f"unknown: nothing was delivered from its queue in the last {span(rate.over_s)}"
    turn_s = earliest_s + (facts.before + 1) / rate.per_s
    text = f"in about {span(turn_s)}, at {_shown(rate.per_s)} (over the last {span(rate.over_s)})"
    return turn_s, f"{text}, if nothing comes before it"


def _shown(per_s: float) -> str:
    """Return a rate for people, in a unit in which it is no fraction."""
    unit, seconds = next(((unit, seconds) for unit, seconds in UNITS if per_s * seconds >= 1), UNITS[-1])
    return f"{per_s * seconds:,.1f} deliveries {unit}"
