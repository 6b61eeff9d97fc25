"""A plain-Python model of the broker, and rules that do the same to the model and to a real server.

Every rule is one command, or one that a dying process left half done; between any two of them anything may come. The model
knows what must happen; `check` compares it with what the server holds.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.maintenance.sweeper import SWEEP_VALUES
from tests.property.consuming import Consuming
from tests.property.maintenance import Maintenance
from tests.property.publishing import Publishing
from tests.property.world import GRACE_MS, INTERVAL_MS, LASTING, QUEUES, VISIBILITY_MS, holders, queues
from tests.support.checking import found
from tests.support.events import event_violations
from tests.support.invariants import violations


class Broker(Publishing, Consuming, Maintenance):
    """All rules together, and what has to be true at the end."""

    @rule(
        what=st.sampled_from(
            (
                *("wakeup", "wakeup", "process", "session", "staging", "originals", "clock 1", "clock 5000", "clock 3600000"),
                *("purge", "purge and die", "delete", "delete and die"),
            )
        ),
        queue=queues,
        holder=holders,
    )
    def a_rare_thing(self, what: str, queue: str, holder: str) -> None:
        """One rule for all that must not come as often as the others: it would leave nothing to test."""
        if what == "wakeup":
            self.a_client_takes_a_wakeup_and_dies(queue)
        elif what == "process":
            self.a_process_dies(holder)
        elif what == "session":
            self.a_session_is_handed_back(holder, queue, page=2)
        elif what == "staging":
            self.publisher_dies_between_staging_and_script(queue)
        elif what == "originals" and self.late():
            self.originals_are_lost()
        elif what.startswith("clock"):
            self.clock.advance(-int(what.split()[1]))
        elif what.startswith("purge"):
            self.purge(queue, dies=what.endswith("die"))
        elif what.startswith("delete") and queue in LASTING:
            self.delete_and_declare_again(queue, dies=what.endswith("die"))

    def teardown(self) -> None:
        try:
            self._everything_comes_through()
        finally:
            self.commands.close()

    def _everything_comes_through(self) -> None:
        """Every publisher retries, every consumer dies; then all that is alive is delivered, once, in order."""
        for logical in self.unconfirmed():
            self.attempt(logical)
        for producer in self.late():
            self.commands.under_way[producer].clear()
        self.clock.set(self.clock.latest_ms + 10 * VISIBILITY_MS)
        # The first passes may give the living time for a heartbeat.
        for _ in range(GRACE_MS // INTERVAL_MS + 2):
            while 0 in self.sweep(list(QUEUES), 500, "last", take_over=True)[: SWEEP_VALUES * len(QUEUES) : SWEEP_VALUES]:
                pass
            self.clock.advance(INTERVAL_MS)
        assert violations(self.client, self.keys, swept=True) == []
        assert found(self.client, self.keys) == []
        for queue in LASTING:
            assert event_violations(self.client, self.keys, queue) == []
        waiting = [m for m in self.messages.values() if m.place != "dead"]
        for queue in QUEUES:
            batch = self.claimers["h1"].claim([queue], 500, share=False)
            expected = sorted((m for m in waiting if m.queue == queue), key=lambda m: m.order)
            assert [m.tag for m in batch.messages] == [m.tag for m in expected]
            self.acknowledger.settle([self.held(m.tag, m.claim, queue) for m in batch.messages], Settlement.ACK)
        for logical in self.logical:
            assert logical.tag is not None, f"message {logical.number} was confirmed and is nowhere"
        assert violations(self.client, self.keys, swept=True) == []
