"""Queues that are swept although nobody consumes them: not the control queues of other processes."""

import kombu

from tests.support.inbox import Inbox
from tests.support.waiting import wait_until


def test_no_process_sweeps_the_control_queues_of_the_others(connect, redis_client):
    control = {"x-message-ttl": 300_000, "x-expires": 10_000}
    for name in ("w1.celery.pidbox", "w2.celery.pidbox"):
        Inbox(connect().channel(), kombu.Queue(name, durable=False, queue_arguments=control))
    Inbox(connect().channel(), kombu.Queue("retries", queue_arguments={"x-message-ttl": 1_000}))
    wait_until(lambda: redis_client.smembers("always_swept"))
    assert redis_client.smembers("always_swept") == {b"retries"}
