"""Whether a task may begin, asked of the server after a standstill."""

import kombu
import pytest
from celery.worker import state

from celery_redis_plus.connection.poll import wait_readable
from celery_redis_plus.integration.lease_guard import has_lease
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until


class Request:
    """What a worker keeps of a task."""

    name, id = "t", "1"

    def __init__(self, message):
        self.message = message
        state.task_reserved(self)


@pytest.fixture
def channel(celery_app, broker_url):
    celery_app()
    with kombu.Connection(broker_url) as connection:
        yield connection.channel()


@pytest.fixture
def request_(channel):
    """A request whose worker stood still after it was delivered."""
    publish(channel, "q", "x")
    inbox = Inbox(channel, "q", ack=False)
    inbox.drain(1)
    (message,) = inbox.messages
    channel.consumer_session.waker.clear()
    # Or a heartbeat asks first.
    channel.session.service.stop()
    channel.session.service.unacked_messages.find(message.delivery_tag).confirmed_at -= 10**6
    return Request(message)


def held_by(channel):
    return len(channel.session.service.unacked_messages)


def is_woken(channel):
    """Return whether the loop hears that there is credit again: a pool of threads asks outside it."""
    waker = channel.consumer_session.waker.fileno()
    return wait_readable([waker], 0) == {waker}


def test_what_is_still_ours_begins(channel, request_):
    assert has_lease(request_)
    assert held_by(channel) == 1
    assert state.requests == {"1": request_}
    state.task_ready(request_)


def test_what_others_have_does_not_begin_and_is_forgotten(channel, request_, redis_client):
    tag = request_.message.delivery_tag
    redis_client.hincrby(channel.session.keys.queue("q").message + tag.encode(), "claim", 1)
    assert not has_lease(request_)
    assert is_woken(channel)
    assert held_by(channel) == 0
    assert state.requests == {}
    assert redis_client.zcard("messages_index:{q}") == 1


def test_when_nobody_can_tell_it_does_not_begin_and_goes_back(channel, request_, server, redis_client):
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert not has_lease(request_)
    assert is_woken(channel)
    assert state.requests == {}
    channel.session.service.start()
    wait_until(lambda: redis_client.zcard("queue:{q}") == 1 and held_by(channel) == 0)
