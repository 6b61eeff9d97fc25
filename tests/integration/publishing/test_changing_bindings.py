"""A publisher beside bindings that change."""

from __future__ import annotations

from typing import Any

import kombu

from tests.support.inbox import declare


def test_a_publisher_is_done_although_bindings_never_stop_changing(connect, monkeypatch):
    channel, other = connect().default_channel, connect().default_channel
    kombu.Queue("one", kombu.Exchange("e", "direct", durable=True), routing_key="k", durable=True)(channel).declare()
    declare(channel, "two")
    bindings, bound = channel.session.bindings, []
    refresh = bindings.refresh

    def slow_refresh(exchange: str) -> Any:
        table = refresh(exchange)
        bound.append(f"key{len(bound)}")
        other.queue_bind("two", "e", bound[-1])
        return table

    monkeypatch.setattr(bindings, "refresh", slow_refresh)
    kombu.Producer(channel).publish("x", exchange="e", routing_key="k")
    assert len(bound) > 1
    assert [channel.queue_sizes(queue).ready for queue in ("one", "two")] == [1, 0]
