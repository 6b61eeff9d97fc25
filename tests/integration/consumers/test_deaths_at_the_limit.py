"""What the log says of messages that die at the delivery limit."""

from __future__ import annotations

import logging

import pytest

from celery_redis_plus.broker.consumers.settlement import Settlement
from tests.support.inbox import declare, publish


@pytest.mark.parametrize("exchange", [False, True])
def test_a_death_at_the_limit_is_a_warning_that_names_task_queue_count_and_place(exchange, connect, caplog):
    channel = connect().channel()
    declare(channel, "q", arguments={"x-delivery-limit": 1, **({"x-dead-letter-exchange": "news"} if exchange else {})})
    for number in range(12):
        publish(channel, "q", number, headers={"task": "shop.bill", "id": f"id-{number}"})
    tags = [channel.basic_get("q").delivery_tag for _ in range(12)]
    held = [channel.session.service.unacked_messages.begin_settling(tag, Settlement.FAIL) for tag in tags]
    with caplog.at_level(logging.WARNING, "celery_redis_plus"):
        channel.consumer_session.acknowledger.settle(held, Settlement.FAIL)
    told = [record.getMessage() for record in caplog.records if "died at the delivery limit" in record.getMessage()]
    assert len(told) == 11
    assert "task shop.bill[id-0] (message " in told[0]
    assert "of queue 'q'" in told[0]
    assert "after 1 failed deliveries" in told[0]
    assert ("dead-letter exchange" if exchange else "celery-redis-plus dead-letters show q ") in told[0]
    assert told[-1].startswith("2 more message(s) of queue 'q'")
