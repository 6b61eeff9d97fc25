"""What the broker knows of one message, its queue and its queue's consumers, of which an explanation is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.consumers.registry import Consumers
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import stored_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redis_plus.admin.holders import Holder
    from celery_redis_plus.broker.consumers.registry import ConsumerRecord
    from celery_redis_plus.broker.queues.messages import MessageInfo
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Fields that are read of the message's hash, and of the queue's record.
OF_MESSAGE: Final = ("claim", "requeues", "unbegun", "owner", "begun", "claimed", "expires", "task_expiry", "waits_since")
OF_QUEUE: Final = (
    *("id", "arguments", "paused", "paused_at", "paused_until", "paused_by", "active", "exclusive", "tokens", "tokens_at"),
    *("burst", "delivered"),
)
#: The first values of the reply.
_HEAD: Final = (
    *("place", "now", "score", "before", "higher", "ready", "delayed", "unacked", "consumers", "processes"),
    *("group", "held_before", "admitted", "limiter", "limited_until", "limited_before"),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read. Times are ms since the epoch on the server's clock.

    Attributes:
        found: what `MessageSearch.find` tells of the message.
        place: `ready`, `held` (ready, and kept back by its group), `limited` (ready, and waits for
            its limiter), `delayed`, `claimed`, `forwarded` (on its way to the
            dead-letter exchange), `dead`, '' where it is gone.
        now_ms: when it was read.
        score_ms: delayed: when it is due; claimed: when its lease ends.
        before: messages that stand before it in its place.
        higher: how many of these are ready and have a higher priority; None where priority counts with time.
        ready, delayed, unacked: messages of the queue.
        live: its live consumers; `processes`: consuming processes of the whole broker whose heartbeats come.
        group: its message group, where its queue has groups; else ''.
        held_before: messages of its group that are held before it.
        admitted: messages of its group that are ready or with consumers.
        limiter: its limiter, where it waits for it, as its header names it; else ''.
        limited_until: when its queue looks at that limiter again, ms since the epoch.
        limited_before: messages of its queue that wait for it before this one.
        message, queue: fields of the message, and of its queue's record, as texts.
        arguments: those of the queue; None where it has no record.
        consumers: the queue's live consumers, read a moment later.
        holder: the process that has it; None where nobody has it, or no process tells that it does.
    """

    found: MessageInfo
    place: str
    now_ms: int
    score_ms: int
    before: int
    higher: int | None
    ready: int
    delayed: int
    unacked: int
    live: int
    processes: int
    group: str
    held_before: int
    admitted: int
    limiter: str
    limited_until: int
    limited_before: int
    message: dict[str, str]
    queue: dict[str, str]
    arguments: QueueArguments | None
    consumers: Sequence[ConsumerRecord]
    holder: Holder | None

    def number(self, field: str) -> int:
        """Return a number of the message's hash; 0 without it."""
        return stored_number(self.message[field])

    def of_queue(self, field: str) -> float:
        """Return a number of the queue's record; 0 without it."""
        try:
            return float(self.queue[field] or 0)
        except ValueError:
            return 0.0

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused now."""
        until = self.of_queue("paused_until")
        return bool(self.queue["paused"]) and (until == 0 or until > self.now_ms)

    @property
    def tokens(self) -> float:
        """How many messages the rate limit lets through now; of a queue without one, any number."""
        rate = None if self.arguments is None else self.arguments.rate_per_s
        if rate is None:
            return float("inf")
        burst = self.of_queue("burst")
        if not self.queue["tokens"]:
            return burst
        passed_ms = max(0.0, self.now_ms - self.of_queue("tokens_at"))
        return min(burst, self.of_queue("tokens") + passed_ms * rate / 1000)


def read_facts(commands: CommandConnection, keys: Keys, found: MessageInfo, holders: dict[str, Holder]) -> Facts:
    """Return what there is to know of a message that was found. Raises as `CommandConnection.call` does.

    Args:
        commands: the connection to its broker.
        keys: spells the keys.
        found: the message.
        holders: of `read_holders`, for its queue.
    """
    of = keys.queue(found.queue)
    places = [of.meta, of.ready, of.delayed, of.index, of.message, of.dlx_outbox, of.dead, *of.living]
    reply = commands.call(script("explain_message"), places, found.id, len(OF_MESSAGE), *OF_MESSAGE, *OF_QUEUE)
    texts = [value.decode("utf-8", "surrogateescape") for value in reply]
    head = dict(zip(_HEAD, texts, strict=False))
    values = texts[len(_HEAD) :]
    message = dict(zip(OF_MESSAGE, values, strict=False))
    queue = dict(zip(OF_QUEUE, values[len(OF_MESSAGE) :], strict=True))
    return Facts(
        found=found,
        place=head["place"],
        now_ms=stored_number(head["now"]),
        score_ms=stored_number(head["score"]),
        before=stored_number(head["before"]),
        higher=stored_number(head["higher"]) if head["higher"] else None,
        ready=stored_number(head["ready"]),
        delayed=stored_number(head["delayed"]),
        unacked=stored_number(head["unacked"]),
        live=stored_number(head["consumers"]),
        processes=stored_number(head["processes"]),
        group=head["group"],
        held_before=stored_number(head["held_before"]),
        admitted=stored_number(head["admitted"]),
        limiter=head["limiter"],
        limited_until=stored_number(head["limited_until"]),
        limited_before=stored_number(head["limited_before"]),
        message=message,
        queue=queue,
        arguments=_arguments(queue["arguments"]),
        consumers=Consumers(commands, keys).list(found.queue),
        holder=holders.get(message["owner"]) if head["place"] == "claimed" else None,
    )


def _arguments(text: str) -> QueueArguments | None:
    if not text:
        return None
    try:
        return QueueArguments.decode(text)
    except InvalidArgument:
        # Somebody else wrote them.
        return None
