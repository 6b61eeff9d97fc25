"""Consumers: claims, settlements, and what becomes of them when a process dies."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.scripts import script
from tests.property.world import QUEUES, VISIBILITY_MS, Message, World, holders, queues

NOT_ACKS = [settlement for settlement in Settlement if settlement is not Settlement.ACK]


class Consuming(World):
    """Rules."""

    @rule(
        holder=holders,
        wanted=st.lists(queues, min_size=1, max_size=len(QUEUES), unique=True),
        credit=st.integers(1, 6),
        share=st.booleans(),
        woken=st.booleans(),
    )
    def claim(self, holder: str, wanted: list[str], credit: int, share: bool, woken: bool) -> None:
        if woken:
            self.client.zpopmin(self.keys.queue(wanted[0]).wakeup)
        late = {queue: self.expired(queue) for queue in wanted}
        before = {queue: [m for m in self.ready(queue) if m not in late[queue]] for queue in wanted}
        batch = self.claimers[holder].claim(wanted, credit, share=share)
        total = sum(map(len, before.values()))
        assert len(batch.messages) == min(credit, total)
        for queue in wanted:
            taken = [m for m in batch.messages if m.queue == queue]
            assert [m.tag for m in taken] == [m.tag for m in before[queue][: len(taken)]]
            self.found_expired(queue, late[queue])
            assert (queue in batch.more) == (len(taken) < len(before[queue]) or bool(self.expired(queue)))
            self.notifies(queue)
        # Where an expired message led a queue, a claim of few looks at the next queue before it looks at this one again.
        if not share and not any(late.values()):
            self.first_queues_first(before, [m.tag for m in batch.messages])
        elif share and credit >= len(wanted) and not any(late.values()):
            assert {m.queue for m in batch.messages} == {queue for queue, messages in before.items() if messages}
        for claimed in batch.messages:
            model = self.messages[claimed.tag]
            assert model.eta <= self.clock.latest_ms, "delivered before its eta"
            body = claimed.body if claimed.body is not None else self.claimers[holder].fetch_body(claimed)
            assert body == model.body
            self.taken(model, holder, known=True)
            assert (claimed.claim, claimed.failures) == (model.claim, model.failed)
            assert claimed.redelivered == (model.seen or model.failed > 0)

    def found_expired(self, queue: str, late: list[Message]) -> None:
        """A claim that comes upon expired messages leaves them to the sweep."""
        for message in self.gone_from(self.keys.queue(queue).ready, late):
            message.place, message.eta, message.lives, message.delay = "delayed", self.clock.now_ms, None, None

    def first_queues_first(self, before: dict[str, list[Message]], tags: list[str]) -> None:
        assert tags == [m.tag for messages in before.values() for m in messages][: len(tags)]

    def taken(self, message: Message, holder: str, *, known: bool) -> None:
        message.claim += 1
        message.place, message.by, message.known = "claimed", holder, known
        message.deadline = self.clock.now_ms + VISIBILITY_MS

    @rule(holder=holders)
    def claim_everywhere(self, holder: str) -> None:
        self.claim(holder, list(QUEUES), 8, share=True, woken=False)

    @precondition(lambda self: self.claimed_by())
    @rule(
        holder=holders,
        what=st.sampled_from(NOT_ACKS),
    )
    def settle_everything_and_claim_again(self, holder: str, what: Settlement) -> None:
        """What old claim numbers must not touch."""
        self.settle_all(self.claimed_by()[:4], what)
        self.claim_everywhere(holder)

    @rule(holder=holders, queue=queues, credit=st.integers(1, 5), noticed=st.booleans(), page=st.integers(1, 3))
    def a_claims_reply_is_lost(self, holder: str, queue: str, credit: int, noticed: bool, page: int) -> None:
        self.commands.connect()
        self.commands.accident = "lost reply"
        late = self.expired(queue)
        taken = [m for m in self.ready(queue) if m not in late][:credit]
        try:
            self.claimers[holder].claim([queue], credit, share=False)
        except ServerUnreachable:
            self.notifies(queue)
        self.found_expired(queue, late)
        for message in taken:
            self.taken(message, holder, known=False)
        if noticed:
            self.a_session_is_handed_back(holder, queue, page)

    def a_client_takes_a_wakeup_and_dies(self, queue: str) -> None:
        if self.client.zpopmin(self.keys.queue(queue).wakeup):
            self.swallowed.add(queue)

    def a_process_dies(self, holder: str) -> None:
        for message in self.claimed_by(holder):
            message.known = False

    @precondition(lambda self: self.claimed_by() or self.stale)
    @rule(data=st.data())
    def work_begins(self, data: st.DataObject) -> None:
        """On some that are held, or no longer are."""
        current = [(m.tag, m.claim, m.queue) for m in self.claimed_by()]
        for tag, claim, queue in data.draw(st.lists(st.sampled_from(current + self.telling()), max_size=3), label="begun"):
            self.commands.call(script("mark_begun"), [self.keys.queue(queue).message], tag, claim)
            message = self.messages.get(tag)
            if message is not None and message.claim == claim:
                message.begun = claim

    # -- settling ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.claimed_by())
    @rule(data=st.data(), what=st.sampled_from(Settlement))
    def settle(self, data: st.DataObject, what: Settlement) -> None:
        self.settle_all(
            data.draw(st.lists(st.sampled_from(self.claimed_by()), min_size=1, max_size=3, unique=True), label="messages"), what
        )

    def settle_all(self, messages: list[Message], what: Settlement) -> None:
        self.acknowledger.settle([self.held(m.tag, m.claim, m.queue) for m in messages], what)
        for message in messages:
            if what is Settlement.ACK:
                self.remove(message)
            elif what is Settlement.REJECT:
                self.die(message)
            elif what in (Settlement.REQUEUE, Settlement.FAIL, Settlement.TIME_OUT):
                self.sent_back(message, failed=what is not Settlement.REQUEUE)
            else:
                self.back(message, seen=what is Settlement.RELEASE_SEEN)
        if what in (Settlement.REJECT, Settlement.FAIL, Settlement.TIME_OUT):
            for queue in {m.queue: None for m in messages}:
                self.evict(queue)

    def sent_back(self, message: Message, *, failed: bool) -> None:
        message.requeues += not failed
        attempt = message.failed + failed + message.requeues
        pause_ms = 0 if attempt == 1 else min(50 * 2 ** (attempt - 2), 5000)
        self.back(message, failed=failed, seen=True, pause_ms=pause_ms)

    @precondition(lambda self: self.stale)
    @rule(
        data=st.data(),
        what=st.sampled_from(NOT_ACKS),
    )
    def settle_with_an_old_claim_number(self, data: st.DataObject, what: Settlement) -> None:
        tag, claim, queue = data.draw(st.sampled_from(self.telling()), label="stale")
        self.acknowledger.settle([self.held(tag, claim, queue)], what)

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), place=st.sampled_from(("ready", "claimed", "dead")))
    def ack_whatever_became_of_it(self, data: st.DataObject, place: str) -> None:
        there = [old for old in self.stale if old[0] in self.messages and self.messages[old[0]].place == place]
        tag, claim, queue = data.draw(st.sampled_from(there or self.stale), label="stale")
        message = self.messages.get(tag)
        self.acknowledger.settle([self.held(tag, claim, queue)], Settlement.ACK)
        if message is not None:
            self.remove(message)

    def telling(self) -> list[tuple[str, int, str]]:
        """Return old claims, if there are such of messages that are claimed again: there a missing fence shows."""
        again = [old for old in self.stale if old[0] in self.messages and self.messages[old[0]].place == "claimed"]
        return again or self.stale

    @rule(data=st.data(), ms=st.sampled_from((0, VISIBILITY_MS // 2)))
    def heartbeat(self, data: st.DataObject, ms: int) -> None:
        """For some that are held, and some that no longer are."""
        self.clock.advance(ms)
        current = [(m.tag, m.claim, m.queue) for m in self.claimed_by()]
        if not (current or self.stale):
            return
        chosen = data.draw(st.lists(st.sampled_from(current + self.telling()), max_size=6, unique=True), label="held")
        by_queue: dict[str, list[tuple[str, int]]] = {}
        for tag, claim, queue in chosen:
            by_queue.setdefault(queue, []).append((tag, claim))
        keys: list[bytes] = []
        arguments: list[Any] = [VISIBILITY_MS]
        for queue, pairs in by_queue.items():
            of = self.keys.queue(queue)
            keys += (of.index, of.message, of.meta)
            arguments += (len(pairs), *itertools.chain(*pairs))
        lost = {tag.decode() for tag in self.commands.call(script("extend_leases"), keys, *arguments)}
        held = set(chosen) & set(current)
        # A stale pair and the present one of the same message may stand side by side; what is in the trash is as good as gone.
        assert lost | self.trashed >= {tag for tag, claim, queue in chosen if (tag, claim, queue) not in held}
        assert lost <= {tag for tag, claim, queue in chosen if (tag, claim, queue) not in held}
        for tag, _, _ in held:
            self.messages[tag].deadline = self.clock.now_ms + VISIBILITY_MS

    def a_session_is_handed_back(self, holder: str, queue: str, page: int) -> None:
        """What the server says the session holds and the process does not know of."""
        keys = self.keys.queue(queue)
        known = [m.tag for m in self.claimed_by(holder)]
        first, total = "-inf", 0
        while first:
            returned, first = self.commands.call(
                script("release_session"),
                [keys.ready, keys.index, keys.message, keys.wakeup, keys.expiry, keys.schedule_wakeup, keys.meta, keys.delayed],
                holder,
                first,
                page,
                *known,
            )
            total += returned
        gone = [m for m in self.live(queue, "claimed") if m.by == holder and not m.known]
        assert total == len(gone)
        for message in gone:
            self.back(message)
