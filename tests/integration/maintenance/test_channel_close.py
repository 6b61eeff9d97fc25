"""The orderly close of one channel of a connection that others go on using."""

from __future__ import annotations

import time

import pytest

from celery_redis_plus import clock
from celery_redis_plus.maintenance import reconnect_recovery
from celery_redis_plus.maintenance.process_services import set_keeper
from tests.support.active_tasks import KnownWorker
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def sizes_of(channel, queue="q"):
    sizes = channel.queue_sizes(queue)
    return sizes.ready, sizes.unacked


@pytest.fixture
def early_second_look(monkeypatch):
    monkeypatch.setattr(reconnect_recovery, "SESSION_RECHECK_S", 0.1)


def get_and_close(connection, queue):
    getting = connection.channel()
    message = getting.basic_get(queue)
    getting.close()
    return message


def test_what_other_channels_have_claimed_stays_with_them(connect, redis_client):
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q", "side")
    publish(publisher, "q", *range(20))
    inbox = Inbox(connection.channel(), "q")
    inbox.drain(1)
    unacked_messages = inbox.channel.session.service.unacked_messages
    get_and_close(connection, "side")
    assert unacked_messages.broken_sessions() == {}
    wait_until(lambda: not unacked_messages.waiting)
    assert sizes_of(publisher) == (0, 19)
    assert inbox.drain(20) == list(range(20))
    assert redis_client.hget("meta:{q}", "delivered") == b"20"


def test_a_claim_whose_reply_is_read_slowly_is_not_given_to_another(connect, redis_client, early_second_look, monkeypatch):
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    inbox = Inbox(connection.channel(), "q")
    assert inbox.rest(0.05) == []
    get_and_close(connection, "q")
    unacked_messages = inbox.channel.session.service.unacked_messages
    add = unacked_messages.add
    held = []

    def slow(messages, *rest):
        if messages:
            for _ in range(30):
                held.append(sizes_of(publisher))
                time.sleep(0.02)
        return add(messages, *rest)

    monkeypatch.setattr(unacked_messages, "add", slow)
    publish(publisher, "q", "m")
    assert inbox.drain(1) == ["m"]
    assert set(held) == {(0, 1)}


def test_what_it_got_and_did_not_settle_goes_back_at_once(connect):
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", 1, 2)
    message = get_and_close(connection, "q")
    assert message.payload == 1
    assert sizes_of(publisher) == (2, 0)
    again = publisher.basic_get("q")
    assert (again.payload, again.delivery_info["redelivered"]) == (1, True)
    again.ack()


def test_what_a_worker_still_works_on_stays_with_it(connect):
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    publish(publisher, "q", 1, 2)
    inbox = Inbox(connection.channel(), "q", ack=False, prefetch=1)
    inbox.drain(1)
    set_keeper(KnownWorker())
    try:
        inbox.channel.close()
        unacked_messages = publisher.session.service.unacked_messages
        assert unacked_messages.broken_sessions() == {}
        wait_until(lambda: not unacked_messages.waiting)
        assert sizes_of(publisher) == (1, 1)
        inbox.messages[0].ack()
        wait_until(lambda: sizes_of(publisher) == (1, 0))
    finally:
        set_keeper(None)


def test_what_comes_of_a_broken_sessions_claim_afterwards_is_not_delivered(connect):
    """Another thread found it broken between the reply and `UnackedMessages`."""
    connection, publisher = connect(), connect().channel()
    declare(publisher, "q")
    channel = connection.channel()
    assert channel.basic_get("q") is None
    publish(publisher, "q", 1)
    session = channel.session
    batch = session.consumer.claim_commands.claim(["q"], 1, share=False)
    session.abandon()
    unacked_messages = session.service.unacked_messages
    unacked_messages.abandon(session.id, ["q"], {})
    assert unacked_messages.add(batch.messages, session.id, clock.now_s()) == []
    wait_until(lambda: sizes_of(publisher) == (1, 0))
