"""What a process knows of its exclusive queues."""

from __future__ import annotations

from contextlib import suppress

import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.errors import ConsumerCancelled
from tests.support.inbox import declare_own
from tests.support.waiting import wait_until


def test_an_auto_delete_queue_that_went_with_its_consumer_is_watched_no_more(channel):
    channel.queue_declare("q", exclusive=True, auto_delete=True)
    channel.basic_cancel(channel.basic_consume("q"))
    assert "q" not in {queue.name for queue in channel.session.service.consumed.all()}


def test_a_process_that_connects_anew_takes_over_from_a_connection_that_broke(connect):
    old, new = connect(), connect()
    old.default_channel.queue_declare("q", exclusive=True)
    assert declare_own(new.default_channel) is None
    # The server does not know yet, and holds the connection for a living one.
    session = old.default_channel.session
    session.fail()  # what a wire calls
    assert declare_own(new.default_channel)
    old.release()
    assert new.default_channel.queue_declare("q", passive=True).queue == "q"


def test_an_owner_that_was_taken_for_gone_does_not_come_back_to_the_queue(connect, redis_client):
    first, second = connect(), connect()
    stolen, got = [], []
    old, new = first.channel(), second.channel()
    old.queue_declare("q", exclusive=True)
    old.basic_consume("q", callback=stolen.append)

    def declared_first():
        # As after a freeze beyond the lease: the record and the list are gone.
        redis_client.delete("meta:{q}", "consumers:{q}")
        with suppress(ChannelError):
            return new.queue_declare("q", exclusive=True)

    wait_until(declared_first)
    new.basic_consume("q", callback=lambda message: (got.append(message.body), message.ack()))
    old.session.service.consumer_lists.run_soon()
    old.session.service.wake()
    for number in range(8):
        new.basic_publish(new.prepare_message(str(number)), "", "q")
        # It hears once that its consumer has ended.
        with pytest.raises((TimeoutError, ConsumerCancelled)):
            first.drain_events(timeout=0.1)
        wait_until(lambda wanted=number + 1: second.drain_events(timeout=5) or len(got) == wanted)
    assert (stolen, len(got)) == ([], 8)
