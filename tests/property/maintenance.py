"""Time, the sweep, purge and delete."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.maintenance.sweeper import NOT_REACHED, SWEEP_VALUES
from celery_redis_plus.scripts import script
from tests.property.world import (
    DEAD_MAX,
    DEAD_TTL_MS,
    DELIVERY_LIMIT,
    GRACE_MS,
    INTERVAL_MS,
    LEASE_MS,
    LONGEST_GAP_MS,
    QUEUES,
    SWEEPERS,
    VISIBILITY_MS,
    World,
)
from tests.support.invariants import LEVEL


class Maintenance(World):
    """Rules."""

    @rule(
        ms=st.sampled_from((1, 2, 999, 2_500, 11_000, VISIBILITY_MS + 1)),
        sweeper=st.sampled_from(SWEEPERS),
        limit=st.integers(2, 9),
    )
    def time_passes_and_all_is_swept(self, ms: int, sweeper: str, limit: int) -> None:
        """As the sweeper that has the lease does it: often enough that nothing looks like an outage."""
        while ms > 0:
            step = min(ms, INTERVAL_MS)
            self.clock.advance(step)
            ms -= step
            self.sweep(list(QUEUES), limit, sweeper, take_over=True)

    @rule(
        ms=st.sampled_from((0, 7_000, 13_000)),
        sweeper=st.sampled_from(SWEEPERS),
        limit=st.integers(1, 5),
        take_over=st.booleans(),
    )
    def somebody_sweeps(self, ms: int, limit: int, sweeper: str, take_over: bool) -> None:
        """Perhaps not the one who has the lease, perhaps after an outage."""
        self.clock.advance(ms)
        self.sweep(list(QUEUES), limit, sweeper, take_over=take_over)

    def sweep(self, wanted: list[str], limit: int, sweeper: str, take_over: bool) -> list[int]:
        now = self.clock.now_ms
        newest = {queue: int(self.client.hget(self.keys.queue(queue).meta, "newest") or 0) for queue in wanted}
        reply = self.run_sweep(wanted, limit, sweeper, take_over=take_over)
        moved = 0
        for number, queue in enumerate(wanted):
            wait_ms, mine, promoted, recovered, *_ = reply[SWEEP_VALUES * number : SWEEP_VALUES * (number + 1)]
            if mine == NOT_REACHED:
                assert (wait_ms, promoted, recovered) == (0, 0, 0)
                assert number, "it was the first to come to"
                continue
            if mine:
                self.rebase(queue, newest[queue])
            due = sorted((m for m in self.live(queue, "delayed") if m.eta <= now), key=lambda m: (m.eta, m.tag))
            overdue = sorted((m for m in self.live(queue, "claimed") if m.deadline <= now), key=lambda m: (m.deadline, m.tag))
            if not mine:
                assert (promoted, recovered) == (0, 0)
                assert not take_over or not (self.live(queue, "ready") or due or overdue)
                continue
            recoverable = 0 if self.in_grace(queue) else len(overdue)
            assert promoted == len(due) or (wait_ms == 0 and promoted < len(due))
            assert recovered == recoverable or (wait_ms == 0 and recovered < recoverable)
            assert promoted + recovered or number or not (due or recoverable)
            moved += promoted + recovered
            for message in due[:promoted]:
                message.place, message.delay = "ready", None
                if message.lives is not None and message.expires is None:
                    message.expires = now + message.lives
            for message in overdue[:recovered]:
                self.back(message, failed=message.failed == 0 or message.begun == message.claim)
            self.end_expired(queue, all_of_them=wait_ms > 0)
            self.evict_gone(queue, all_of_them=wait_ms > 0)
            self.notifies(queue)
            later = [m.eta for m in self.live(queue, "delayed")]
            later += [m.expires for m in self.live(queue, "ready") if m.expires is not None]
            if later:
                assert wait_ms <= max(0, min(later) - now), "the sweeper sleeps past the next due time"
        assert moved <= limit
        return reply

    def rebase(self, queue: str, newest: int) -> None:
        """After a step of the clock back nothing waits longer than its own delay, nor stands behind what is published now."""
        now = self.clock.now_ms
        if self.swept_at.get(queue, 0) <= now:
            return
        for message in self.live(queue, "delayed"):
            if message.delay is not None and message.eta > now + message.delay:
                message.eta = now + message.delay
                message.score = min(message.score, message.score // LEVEL * LEVEL + max(message.eta, newest))

    def end_expired(self, queue: str, *, all_of_them: bool) -> None:
        late = self.expired(queue)
        gone = self.gone_from(self.keys.queue(queue).ready, late)
        assert not all_of_them or gone == late
        for message in gone:
            self.die(message)
        for message in self.gone_from(self.keys.queue(queue).dlx_outbox, self.live(queue, "dlx_outbox")):
            died = message.deadline
            self.die(message)
            message.deadline = died

    def in_grace(self, queue: str) -> bool:
        """Return whether the living have time for a heartbeat first: at the first pass, after an outage, a jump of the clock."""
        now, swept = self.clock.now_ms, self.swept_at.get(queue)
        if (swept is None or now - swept > LONGEST_GAP_MS or now < swept) and self.live(queue, "claimed"):
            self.grace_until[queue] = now + GRACE_MS
        self.swept_at[queue] = now
        return self.grace_until.get(queue, 0) > now

    def run_sweep(self, wanted: list[str], limit: int, sweeper: str, *, take_over: bool) -> list[int]:
        keys: list[bytes] = []
        for queue in wanted:
            keys += self.keys.queue(queue).state_keys
        reply: list[int] = self.commands.call(
            script("sweep"), keys, sweeper, LEASE_MS, INTERVAL_MS, limit, int(take_over), GRACE_MS, LONGEST_GAP_MS,
            DELIVERY_LIMIT, DEAD_MAX, DEAD_TTL_MS,
        )  # fmt: skip
        return reply

    # -- purge and delete -------------------------------------------------------------------------------------------------

    def purge(self, queue: str, dies: bool) -> None:
        waiting = self.live(queue, "ready") + self.live(queue, "delayed")
        if dies:
            keys = self.keys.queue(queue)
            purged = self.commands.call(script("purge"), keys.purge)
        else:
            purged = self.queues.purge(queue)
        assert purged == len(waiting)
        for message in waiting:
            del self.messages[message.tag]
        self.notifies(queue)

    def delete_and_declare_again(self, queue: str, dies: bool) -> None:
        ready = len(self.live(queue, "ready"))
        if dies:
            self.commands.call(script("delete"), self.keys.queue(queue).delete, 0, 0, 0, "")
        else:
            assert self.queues.delete(queue) == ready
        for message in [m for m in self.messages.values() if m.queue == queue]:
            self.trashed.add(message.tag)
            self.remove(message)
        self.queues.declare(queue, QueueArguments.parse(queue, durable=True))
        self.swept_at.pop(queue, None)
        self.grace_until.pop(queue, None)
        self.newest.pop(queue, None)
        self.notifies(queue)
