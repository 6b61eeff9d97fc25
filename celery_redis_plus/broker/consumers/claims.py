"""Takes messages for a consumer: one script call takes and records them in one step, over many queues.

The call carries the acks that wait for company: at prefetch 1 each message then costs one call, and one round trip.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from celery_redis_plus.broker.consumers.failures import log_deaths, read_deaths
from celery_redis_plus.broker.queue_failures import QueueFailures
from celery_redis_plus.events import pack_text, unpack_text
from celery_redis_plus.keys import decode_name
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import Claimed, UnreadableMessageError, split_payload

if TYPE_CHECKING:
    from celery_redis_plus.broker.consumers.acks import Acknowledger
    from celery_redis_plus.broker.consumers.unacked import UnackedMessage
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.pending_reply import Done
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Most messages a claim takes; Lua's `unpack` fails near 8,000 values, and a batch blocks the server for its length.
MAX_CLAIMED = 500
#: Bytes of payload after which a claim takes no further message.
MAX_CLAIMED_BYTES = 1_000_000
#: Ends the header of a Celery task that has expired.
EXPIRED = b" expired"
#: Ends, before that, the header of one whose retry was published.
RETRIED = b" retried"
#: Most queues a claim looks at; hot ones come first (100 queues in one call cost 10 ms when all are cold).
MAX_QUEUES = 20


@dataclass(frozen=True, slots=True)
class Batch:
    """What a claim brought."""

    messages: list[Claimed]
    #: Queues that still had ready messages afterwards.
    more: list[str]
    #: Queues with rules for their consumers, which only the script `claim_restricted` may take from; none was looked at.
    restricted: list[str] = field(default_factory=list)
    #: Queues that cannot be claimed from -> why: what their keys hold.
    failures: Mapping[str, str] = field(default_factory=dict)


class State(Enum):
    """How a queue that has rules for its consumers stands to one of them."""

    OK = "ok"
    #: It has no rules any more.
    PLAIN = "plain"
    PAUSED = "paused"
    #: Another consumer is the active one, or has the queue alone.
    STANDBY = "standby"
    #: One of a higher priority has credit.
    OUTRANKED = "outranked"
    #: A takeover takes more calls, or all that the call came to had expired.
    AGAIN = "again"
    #: The consumer is off the list, and has to join again.
    UNKNOWN = "unknown"
    #: The queue belongs to another connection, and the consumer is off its list.
    LOCKED = "locked"
    #: The consumer has a filter, the queue was declared anew without `x-filtered`, and the consumer is off its list.
    UNFILTERED = "unfiltered"


@dataclass(frozen=True, slots=True)
class RestrictedBatch:
    """What a claim from a queue with rules brought."""

    messages: list[Claimed]
    state: State
    #: Seconds after which the consumer has to claim again, because no other process will wake it; None: one will.
    wait_s: float | None
    #: Counts the changes of the single active consumer.
    activations: bytes
    #: There is more to take, or the consumer has to claim as soon as it has credit.
    more: bool
    #: Its consumers have priorities.
    has_priorities: bool
    #: Of a filtered queue: where the look has ended, for the next claim; empty: at the end of the queue.
    cursor: bytes = b""


@dataclass(slots=True)
class Look:
    """How a consumer of a filtered queue looks through it."""

    #: What it takes, packed; empty: all.
    filter: str = ""
    #: Something has become ready since its last claim, of which the other consumers shall hear.
    pass_on: bool = False
    #: Where its last look has ended; empty: at the end of the queue.
    cursor: bytes = b""
    #: Something has become ready in the course of this look, perhaps behind it.
    again: bool = False


class ClaimCommands:
    """Claims over one connection for one session."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        *,
        holder: str,
        visibility_timeout_s: float,
        acknowledger: Acknowledger | None = None,
        delivery_limit: int | None = None,
        dead_letter_max: int = 10_000,
    ) -> None:
        """Claim over `commands` in the name of `holder`; a claim lasts `visibility_timeout_s` seconds without heartbeat.

        A claim takes the batched acks of `acknowledger` along. The limits are for what a dead single active consumer held: see
        `Acknowledger`.
        """
        self._commands = commands
        self._keys = keys
        self._holder = holder
        self._acknowledger = acknowledger
        self._visibility_timeout_ms = int(visibility_timeout_s * 1000)
        self._delivery_limit = -1 if delivery_limit is None else delivery_limit
        self._dead_letter_max = dead_letter_max
        self._claim = script("claim")
        self._claim_restricted = script("claim_restricted")
        self._worker = ""
        #: Takes the errors of queues that cannot be claimed from.
        self.failures = QueueFailures(commands, logger, "cannot be claimed from")

    @property
    def worker(self) -> str:
        """What the messages' lifecycle events call the one who claims."""
        return unpack_text(self._worker)

    @worker.setter
    def worker(self, name: str) -> None:
        self._worker = pack_text(name)

    def claim(self, queues: Sequence[str], credit: int, *, share: bool, held: Sequence[int] = ()) -> Batch:
        """Take up to `credit` messages of `queues` (at most `MAX_QUEUES` of them).

        Args:
            queues: names, in the order in which they are looked at.
            credit: how many messages at most.
            share: split the credit among the queues, instead of emptying the first one first.
            held: how many messages of each queue the consumer has in work, so that it leaves their parts of a burst to others;
                empty: it takes as many as it can.

        Raises:
            redis.exceptions.RedisError: as `error_translation.translate` names it. What a lost reply held is released when the
                session is given up.
        """
        names = queues[:MAX_QUEUES]
        acks = () if self._acknowledger is None else self._acknowledger.take_for_claim(names)
        keys, arguments = self._call(names, credit, held, acks, share=share)
        try:
            reply = self._commands.call(self._claim, keys, *arguments)
        except BaseException:
            self._settle_acks(acks, None, names)
            raise
        if acks:
            self._settle_acks(acks, reply, names)
        return self.read_reply(reply, names)

    def post(
        self, queues: Sequence[str], credit: int, *, share: bool, held: Sequence[int] = (), done: Done
    ) -> Sequence[str]:  # fmt: skip
        """Send a `claim` without waiting.

        Returns the queues by which `read_reply` reads the reply that `done` gets.

        Raises:
            redis.exceptions.ConnectionError: the connection failed.
        """
        names = queues[:MAX_QUEUES]
        acks = () if self._acknowledger is None else self._acknowledger.take_for_claim(names)
        keys, arguments = self._call(names, credit, held, acks, share=share)

        def answered(reply: Any, error: Exception | None) -> None:
            self._settle_acks(acks, reply, names)
            done(reply, error)

        self._commands.send_nowait(self._claim, keys, *arguments, done=answered if acks else done)
        return names

    def read_reply(self, reply: Sequence[bytes], names: Sequence[str]) -> Batch:
        """Return what a claim of the queues `names` brought, from the script's reply; log where it could not claim from one.

        Raises:
            redis.exceptions.RedisError: the server refused commands of the script, and not for what the keys of a queue hold.
        """
        batch = batch_of(reply, names)
        for queue, why in batch.failures.items():
            if batch.messages:
                self.failures.log(why, queue, self._call_of(queue))
            else:
                self.failures.contain_text(why, queue, self._call_of(queue))
        return batch

    def error_of(self, queue: str, why: str) -> Exception:
        """Return the error for one of a batch's `failures`."""
        return self.failures.error_of(why, self._call_of(queue))

    def _call_of(self, queue: str) -> Sequence[Argument]:
        keys = self._keys.queue(queue).claim
        return ("EVALSHA", self._claim.sha, len(keys), *keys)

    def _settle_acks(self, acks: Sequence[UnackedMessage], reply: Sequence[bytes] | None, names: Sequence[str]) -> None:
        """Note what became of the acks that went with a claim; `reply` None: the server has not answered."""
        if acks and self._acknowledger is not None:
            again: Sequence[str] | None = None if reply is None else ()
            if reply is not None and b"|" in reply[0]:
                again = [names[int(number) - 1] for number in first_entry(reply)[1].split()]
            self._acknowledger.settle_claimed(acks, again)

    def _call(
        self, names: Sequence[str], credit: int, held: Sequence[int], acks: Sequence[UnackedMessage], *, share: bool
    ) -> tuple[Sequence[bytes], tuple[Argument, ...]]:  # fmt: skip
        keys: Sequence[bytes]
        pairs: list[Argument] = []
        if len(names) == 1:
            keys = self._keys.queue(names[0]).claim
            for unacked in acks:
                pairs += (1, unacked.tag)
        else:
            keys = [key for name in names for key in self._keys.queue(name).claim]
            for unacked in acks:
                pairs += (names.index(unacked.queue) + 1, unacked.tag)
        shares = int(share and len(names) > 1)
        fixed = (credit, self._visibility_timeout_ms, self._holder, MAX_CLAIMED_BYTES, shares, self._worker, len(acks))
        return keys, (*fixed, *pairs, *held)

    def claim_restricted(
        self, queue: str, count: int, consumer: str, *, credit: int, activations: bytes, look: Look | None = None
    ) -> RestrictedBatch:  # fmt: skip
        """Take up to `count` messages of a queue that has rules for its consumers.

        Args:
            queue: its name.
            count: how many messages at most.
            consumer: the consumer's id; empty for one that gets messages one at a time.
            credit: what the consumer could take in all.
            activations: what the last claim of this consumer from this queue brought as `activations`; empty at first.
            look: of a filtered queue.

        Raises as `CommandConnection.call` does.
        """
        if self._acknowledger is not None:
            # In the claim's write, and before it: the room that they make may be what it looks for.
            self._acknowledger.flush(buffered=True)
        reply: list[bytes] = self._commands.call(
            self._claim_restricted, self._keys.queue(queue).consumer_keys,
            count, self._visibility_timeout_ms, self._holder, MAX_CLAIMED_BYTES, consumer, credit, activations,
            self._delivery_limit, self._dead_letter_max, self._worker,
            *(() if look is None else (look.filter, int(look.pass_on), look.cursor)),
        )  # fmt: skip
        state, wait_ms, now_activations, more, ranked, told, *cursor = reply[0].split()
        wait_s = int(wait_ms) / 1000
        claimed_to = len(reply) - int(told)
        if int(told):
            deaths = list(read_deaths(reply[claimed_to:]))
            log_deaths(queue, len(deaths), deaths)
        return RestrictedBatch(
            claimed_messages(reply[:claimed_to], [queue]),
            State(state.decode()),
            None if wait_s < 0 else wait_s,
            now_activations,
            more=more == b"1",
            has_priorities=ranked == b"1",
            cursor=b"" if not cursor or cursor[0] == b"-" else cursor[0],
        )

    def fetch_body(self, message: Claimed) -> bytes | None:
        """Return the body of a large message, which the claim left out; None where the message is gone by now.

        Raises:
            UnreadableMessageError: the message is there, and has no body: its payload was damaged.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        key = self._keys.queue(message.queue).message + message.tag.encode()
        body: bytes | None
        body, claim = self._commands.command("HMGET", key, "body", "claim")
        if body is None and claim is not None:
            raise UnreadableMessageError("its payload has no line feed, and no body stands beside it")
        return body


def first_entry(reply: Sequence[bytes]) -> tuple[bytes, bytes, list[bytes]]:
    """Split the first entry of a claim's reply (`lua/claim.lua`).

    Returns:
        The numbers of queues with more messages, those of queues whose acks were not all carried out, and for each queue that
        cannot be claimed from its number and why.
    """
    numbers, *failures = reply[0].split(b"!")
    more, _, acks = numbers.partition(b"|")
    return more, acks, failures


def batch_of(reply: Sequence[bytes], names: Sequence[str]) -> Batch:
    """Return what a claim of the queues `names` brought, from the script's reply."""
    if not reply[0]:
        return Batch(claimed_messages(reply, names), [])
    if len(names) == 1 and reply[0] == b"1":
        return Batch(claimed_messages(reply, names), list(names))
    more, _, failed = first_entry(reply)
    numbers = [int(number) for number in more.split()]
    failures = (text.decode(errors="replace").partition(" ") for text in failed)
    return Batch(
        claimed_messages(reply, names),
        [names[number - 1] for number in numbers if number > 0],
        [names[-number - 1] for number in numbers if number < 0],
        {names[int(number) - 1]: why for number, _, why in failures},
    )


def claimed_messages(reply: Sequence[bytes], names: Sequence[str]) -> list[Claimed]:
    """Return the messages in a claim script's reply: a first entry of the script's own, then header, payload, header, payload.

    Args:
        reply: as the server sent it.
        names: the queues, as the headers number them from 1.
    """
    messages = []
    for at in range(1, len(reply), 2):
        number, _, header = reply[at].partition(b" ")
        expired = header.endswith(EXPIRED)
        header = header.removesuffix(EXPIRED)
        retried = header.endswith(RETRIED)
        # A tag that is not ours may have spaces.
        tag, claim, failures, seen = header.removesuffix(RETRIED).rsplit(b" ", 3)
        envelope, body = split_payload(reply[at + 1])
        messages.append(
            Claimed(
                tag=decode_name(tag),
                queue=names[int(number) - 1],
                claim=int(claim),
                failures=int(failures),
                redelivered=seen != b"0" or failures != b"0",
                envelope=envelope,
                body=body,
                expired=expired,
                retried=retried,
            )
        )
    return messages
