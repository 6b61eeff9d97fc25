"""Batches whose connection breaks."""

from __future__ import annotations

import kombu
import pytest
from kombu import exceptions

from celery_redis_plus.errors import ServerUnreachable
from tests.support.inbox import Inbox, declare


@pytest.mark.skipif(not hasattr(exceptions, "BatchPublishError"), reason="kombu before 5.7 has no batches")
@pytest.mark.parametrize("refusals", [0, 2])
def test_a_batch_that_meets_an_outage_after_an_outage_is_stored(connect, monkeypatch, refusals):
    """The doubt about an earlier call is none about this batch, of which nothing was written."""
    producer = kombu.Producer(connect().channel())
    declare(producer.channel, "q")
    commands = producer.channel.session.commands
    open_connection, refused = commands.connector.open, []

    def refuse(*arguments, **options):
        if len(refused) < refusals:
            refused.append(None)
            raise ServerUnreachable("refused")
        return open_connection(*arguments, **options)

    for start in (0, 5):
        refused.clear()
        commands.abort(ConnectionResetError("cut"))
        commands.outcome_unknown = True
        monkeypatch.setattr(commands.connector, "open", refuse)
        with producer.batch():
            for number in range(start, start + 5):
                producer.publish(number, routing_key="q")
    assert len(refused) == refusals
    assert Inbox(connect().channel(), "q").rest() == list(range(10))
