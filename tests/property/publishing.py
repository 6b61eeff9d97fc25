"""Publishers, over connections that fail."""

from __future__ import annotations

from functools import partial

import redis
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from celery_redis_plus.broker.publishing.publisher import NEED_METADATA, NO_QUEUE, REDECLARED
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.stored_message import Outgoing
from tests.property.world import LARGE, VISIBILITY_MS, Logical, Message, World, queues
from tests.support.invariants import LEVEL

lives = st.sampled_from((None, None, None, None, 0, 1, 2_500, VISIBILITY_MS + 5_000))

#: Answers by which a publish, or a late original of it, has stored nothing.
NOTHING_STORED = {NEED_METADATA, NO_QUEUE, REDECLARED}


class Publishing(World):
    """Rules."""

    @rule(
        queue=queues,
        messages=st.lists(
            st.tuples(st.sampled_from((0, 0, 1, 254, 255)), st.sampled_from((0, 0, 0, -5_000)), st.integers(0, 9), lives),
            min_size=1,
            max_size=5,
        ),
    )
    def publish(self, queue: str, messages: list[tuple[int, int, int, int | None]]) -> None:
        for priority, delay, size, life in messages:
            self.attempt(self.new(queue, priority, delay, relative=False, large=size == 9, life=life))

    @rule(
        queue=queues,
        delays=st.lists(st.sampled_from((1, 3, 2_500, 2_501, 40_000)), min_size=1, max_size=4),
        relative=st.booleans(),
        life=lives,
    )
    def publish_delayed(self, queue: str, delays: list[int], relative: bool, life: int | None) -> None:
        for delay in delays:
            self.attempt(self.new(queue, 0, delay, relative=relative, large=False, life=life))

    @rule(
        accidents=st.lists(st.sampled_from(("delayed", "lost reply", "never arrives")), min_size=1, max_size=4),
        queue=queues,
        large=st.booleans(),
    )
    def publish_over_a_failing_connection(self, accidents: list[str], queue: str, large: bool) -> None:
        """Several messages in one connection's order, each in doubt; then the connection is gone."""
        arriving = True
        for accident in accidents:
            logical = self.new(queue, 0, 0, relative=False, large=large)
            # What comes after a hole in the stream of bytes does not arrive.
            arriving = arriving and accident != "never arrives"
            late = bool(self.commands.under_way.get(self.commands.producer))
            self.attempt(logical, accident=("delayed" if late else accident) if arriving else "never arrives")
        self.commands.abort()

    @precondition(lambda self: self.unconfirmed())
    @rule(
        data=st.data(),
        accidents=st.lists(st.sampled_from((None, "refused", "delayed", "lost reply", "never arrives")), min_size=1, max_size=3),
    )
    def retry(self, data: st.DataObject, accidents: list[str | None]) -> None:
        logical = data.draw(st.sampled_from(self.unconfirmed()), label="logical")
        for accident in accidents:
            if not logical.confirmed:
                self.attempt(logical, accident=accident)

    @precondition(lambda self: self.late())
    @rule(data=st.data())
    def a_late_original_arrives(self, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(self.late()), label="producer")
        what, packed = self.commands.under_way[producer].popleft()
        try:
            reply = self.commands.call_packed(what, packed)
        except redis.ResponseError as error:
            # Its body has been taken over by the retry, or has expired.
            assert "staged" in str(error)  # noqa: PT017 - the error is the answer that nobody reads
            return
        if reply and reply not in NOTHING_STORED:
            # Behind EVALSHA, hash and number of keys stand the keys; one of them is the prefix of messages.
            prefix = packed.split(b"\r\n")[2::2][5 if what.name == "publish_ordinary" else 6]
            self.stored(self.by_body[self.stored_body(prefix + reply)], reply.decode())

    def originals_are_lost(self) -> None:
        """What is under way on the oldest connection never arrives."""
        del self.commands.under_way[self.late()[0]]

    def publisher_dies_between_staging_and_script(self, queue: str) -> None:
        logical = self.new(queue, 0, 0, relative=False, large=True)
        self.attempt(logical, accident="refused")
        self.logical.remove(logical)

    def unconfirmed(self) -> list[Logical]:
        return [logical for logical in self.logical if not logical.confirmed]

    def late(self) -> list[bytes]:
        return [producer for producer, calls in self.commands.under_way.items() if calls]

    def new(self, queue: str, priority: int, delay: int, *, relative: bool, large: bool, life: int | None = None) -> Logical:
        number = next(self.numbers)
        body = b"%d." % number + b"x" * (LARGE if large else 0)
        eta: int | str = 0
        if delay:
            eta = f"+{delay}" if relative and delay > 0 else self.clock.now_ms + delay
        outgoing = Outgoing(b"{}", body, 255 - priority, eta, "" if life is None else f"+{life}")
        logical = Logical(number, queue, self.prepared(queue, outgoing))
        self.logical.append(logical)
        self.by_body[body] = logical
        return logical

    def prepared(self, queue: str, outgoing: Outgoing) -> Outgoing:
        """Have the script for ordinary messages used, where the transport does."""
        known = self.queues.known(queue)
        outgoing.ordinary = False
        outgoing.queue_id = b""
        if known is not None and known.ordinary and not (outgoing.eta or outgoing.life or len(outgoing.body) >= LARGE):
            outgoing.ordinary, outgoing.queue_id = True, known.id
            outgoing.prepare_again = partial(self.prepared_again, queue, outgoing)
        return outgoing

    def prepared_again(self, queue: str, outgoing: Outgoing) -> Outgoing:
        self.queues.read(queue)
        return self.prepared(queue, outgoing)

    def attempt(self, logical: Logical, *, accident: str | None = None) -> None:
        self.commands.connect()
        self.commands.accident = accident
        self.commands.lost_reply = None
        before = logical.tag
        try:
            stored = self.publisher.to_queue(logical.queue, logical.outgoing, logical.attempt)
        except ServerUnreachable:
            self.commands.accident = None
            reply = self.commands.lost_reply
            if reply and reply not in NOTHING_STORED:
                self.stored(logical, reply.decode())
            return
        assert stored
        logical.confirmed = True
        if before is None:
            tag = self.find(logical)
            assert tag is not None, "confirmed, and not stored"
            self.stored(logical, tag)

    def find(self, logical: Logical) -> str | None:
        """Return the tag of a message that was published just now."""
        keys = self.keys.queue(logical.queue)
        for key in self.client.scan_iter(self.pattern(keys.message), count=1000):
            tag = key.rpartition(b":")[2].decode()
            if not tag.startswith("staged.") and tag not in self.messages and self.stored_body(key) == logical.outgoing.body:
                return tag
        return None

    @staticmethod
    def pattern(prefix: bytes) -> bytes:
        return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^" else bytes([c]) for c in prefix) + b"*"

    def stored_body(self, key: bytes) -> bytes:
        payload, body = self.client.hmget(key, "payload", "body")
        return body if body is not None else payload.partition(b"\n")[2]

    def stored(self, logical: Logical, tag: str) -> None:
        assert logical.tag is None, f"message {logical.number} was stored twice"
        logical.tag = tag
        outgoing, now = logical.outgoing, self.clock.now_ms
        eta = now + int(outgoing.eta) if isinstance(outgoing.eta, str) else outgoing.eta
        delayed = eta > now
        # Also where the clock goes back, no message stands before those that were published before it.
        time = int(tag[:11], 16)
        assert time >= max(now, self.newest.get(logical.queue, 0))
        self.newest[logical.queue] = time
        self.messages[tag] = Message(
            tag,
            logical.queue,
            outgoing.body,
            outgoing.rank * LEVEL + max(eta, time),
            eta,
            "delayed" if delayed else "ready",
            lives=int(outgoing.life) if outgoing.life else None,
            delay=int(outgoing.eta) if isinstance(outgoing.eta, str) else None,
        )
        if outgoing.life and not delayed:
            self.messages[tag].expires = now + int(outgoing.life)
        if not delayed:
            self.notifies(logical.queue)
