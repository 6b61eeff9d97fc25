"""A worker that is told to end: its loop begins nothing more."""

from __future__ import annotations

import pytest


class Ends(SystemExit):
    """As Celery's WorkerShutdown, which is a SystemExit."""


def turn(hub):
    for _ in range(10):
        hub.run_once()


def test_no_message_is_delivered_after_the_one_in_which_the_worker_was_told_to_end(consuming, hub):
    world = consuming()
    world.broker.publish("q", "a", "b")
    world.channel("q", prefetch=2)

    def check_shutdown():
        if world.messages:
            raise Ends

    world.loop.set_worker("w", pool_is_concurrent=False, check_shutdown=check_shutdown)
    world.loop.attach(hub)
    with pytest.raises(Ends):
        turn(hub)
    assert [message.delivery_tag for message in world.messages] == ["a"]
    world.loop.detach()
