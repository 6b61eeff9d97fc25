"""What programs that collect logs get: attributes beside the text, and no line for a message that is well."""

from __future__ import annotations

import logging

import kombu

from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

TREE = "celery_redis_plus"


def test_a_message_that_is_well_has_no_line_above_debug(connect, caplog):
    channel, consuming = connect().channel(), connect().channel()
    with caplog.at_level(logging.DEBUG, TREE):
        inbox = Inbox(consuming, "q")
        publish(channel, "q", *range(30), headers={"task": "shop.pay", "id": "id-1"})
        publish(channel, "q", "later", headers={"x-delay": 100})
        inbox.drain(31)
        wait_until(lambda: not channel.queue_sizes("q").ready and not channel.queue_sizes("q").delayed)
        consuming.close()
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_a_message_that_dies_has_one_line_with_queue_tag_and_task(connect, caplog):
    channel = connect().channel()
    inbox = Inbox(channel, kombu.Queue("q", queue_arguments={"x-delivery-limit": 1}), ack=False)
    publish(channel, "q", "x", headers={"task": "shop.pay", "id": "id-1"})
    inbox.drain(1)
    with caplog.at_level(logging.INFO, TREE):
        inbox.messages[0].requeue()
        wait_until(lambda: dead_letters_of(channel).count("q") == 1 and caplog.records)
    (record,) = caplog.records
    assert (record.name.partition(".")[0], record.levelno) == (TREE, logging.WARNING)
    assert (record.queue, record.task_name, record.task_id) == ("q", "shop.pay", "id-1")
    assert record.tag in record.getMessage()
