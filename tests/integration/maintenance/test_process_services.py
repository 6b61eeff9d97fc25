"""Connections of one process that differ in an option of the maintenance do not get each other's values."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.maintenance.process_services import SERVICE_OPTIONS
from celery_redis_plus.options import Options
from tests.support.inbox import declare, publish
from tests.support.waiting import wait_until


def test_connections_with_the_same_options_share_a_service(connect):
    one, other = connect(delivery_limit=3, polling_interval=1), connect(delivery_limit=3, polling_interval=2)
    assert one.channel().session.service is other.channel().session.service


@pytest.mark.parametrize(
    "option", [{"delivery_limit": 3}, {"dead_letter_max": 3}, {"transient_queue_ttl": 3}, {"event_log_maxlen": 3}]
)
def test_connections_with_other_options_have_services_of_their_own(connect, option):
    assert connect().channel().session.service is not connect(**option).channel().session.service


def test_every_option_that_tells_services_apart_exists_and_can_be_compared():
    assert len({tuple(getattr(Options(), name) for name in SERVICE_OPTIONS)}) == 1


def test_the_background_thread_of_a_second_connection_keeps_as_many_dead_letters_as_that_connection_says(connect, redis_client):
    connect().channel().session.service.start()
    channel = connect(dead_letter_max=2).channel()
    declare(channel, "q")
    service = channel.session.service
    for number in range(5):
        publish(channel, "q", number)
        message = channel.basic_get("q")
        # As after the loss of its connection: the service settles it.
        service.unacked_messages.defer(service.unacked_messages.find(message.delivery_tag), Settlement.REJECT)
        service.start()
        wait_until(lambda: not service.unacked_messages.waiting)
    assert redis_client.zcard("dead:{q}") == 2
