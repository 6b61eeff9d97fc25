"""The list of transient queues follows the server's clock, wherever it steps."""

from __future__ import annotations


def test_a_vanished_transient_queue_is_overdue_on_the_servers_clock(clock, broker):
    broker.queues.registry.enlist("gone", 60_000)
    assert broker.queues.registry.overdue() == []
    clock.step(61)
    assert broker.queues.registry.overdue() == ["gone"]
