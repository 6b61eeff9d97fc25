"""Takes messages for a consumer: one script call takes and records them in one step, over many queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redis_plus.events import pack_text, unpack_text
from celery_redis_plus.message import Claimed, split_payload
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.topology.wire import Wire

#: Most messages a claim takes; Lua's `unpack` fails near 8,000 values, and a batch blocks the server for its length.
MAX_BATCH = 500
#: Bytes of payload after which a claim takes no further message.
MAX_BATCH_BYTES = 1_000_000
#: Most queues a claim looks at; hot ones come first (100 queues in one call cost 10 ms when all are cold).
MAX_QUEUES = 20


@dataclass(frozen=True, slots=True)
class Batch:
    """What a claim brought."""

    messages: list[Claimed]
    #: Queues that still had ready messages afterwards.
    more: list[str]


class Claimer:
    """Claims over one wire for one session."""

    def __init__(self, wire: Wire, keys: Keys, *, holder: str, visibility_timeout_s: float) -> None:
        """Claim over `wire` in the name of `holder`; a claim lasts `visibility_timeout_s` seconds without heartbeat."""
        self._wire = wire
        self._keys = keys
        self._holder = holder
        self._visibility_timeout_ms = int(visibility_timeout_s * 1000)
        self._claim = script("claim")
        self._worker = ""

    @property
    def worker(self) -> str:
        """What the messages' lifecycle events call the one who claims."""
        return unpack_text(self._worker)

    @worker.setter
    def worker(self, name: str) -> None:
        self._worker = pack_text(name)

    def claim(self, queues: Sequence[str], credit: int, *, share: bool) -> Batch:
        """Take up to `credit` messages of `queues` (at most `MAX_QUEUES` of them).

        Args:
            queues: names, in the order in which they are looked at.
            credit: how many messages at most.
            share: split the credit among the queues, instead of emptying the first one first.

        Raises:
            redis.exceptions.RedisError: as `errors.translate` names it. What a lost reply held is handed back when the
                session is given up.
        """
        names = queues[:MAX_QUEUES]
        keys: list[bytes] = []
        for name in names:
            of = self._keys.queue(name)
            keys += (of.ready, of.index, of.message, of.bell, of.meta, of.expiry, of.dying)
        reply: list[bytes] = self._wire.run(
            self._claim,
            keys,
            credit,
            self._visibility_timeout_ms,
            self._holder,
            MAX_BATCH_BYTES,
            int(share and len(names) > 1),
            self._worker,
        )
        messages = []
        for at in range(1, len(reply), 2):
            number, tag, claim, failures, seen = reply[at].split()
            envelope, body = split_payload(reply[at + 1])
            messages.append(
                Claimed(
                    tag=tag.decode(),
                    queue=names[int(number) - 1],
                    claim=int(claim),
                    failures=int(failures),
                    redelivered=seen != b"0" or failures != b"0",
                    envelope=envelope,
                    body=body,
                )
            )
        return Batch(messages, [names[int(number) - 1] for number in reply[0].split()])

    def fetch_body(self, message: Claimed) -> bytes | None:
        """Return the body of a large message, which the claim left out; None where the message is gone by now."""
        key = self._keys.queue(message.queue).message + message.tag.encode()
        body: bytes | None = self._wire.command("HGET", key, "body")
        return body
