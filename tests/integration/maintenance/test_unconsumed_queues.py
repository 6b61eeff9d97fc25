"""Queues that are swept although nobody consumes them: not the control queues of other processes."""

import kombu

from celery_redis_plus import clock
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.maintenance.leader import Leadership
from celery_redis_plus.maintenance.unconsumed_queues import UnconsumedQueues
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until


def test_no_process_sweeps_the_control_queues_of_the_others(connect, redis_client):
    control = {"x-message-ttl": 300_000, "x-expires": 10_000}
    for name in ("w1.celery.pidbox", "w2.celery.pidbox"):
        Inbox(connect().channel(), kombu.Queue(name, durable=False, queue_arguments=control))
    Inbox(connect().channel(), kombu.Queue("retries", queue_arguments={"x-message-ttl": 1_000}))
    wait_until(lambda: redis_client.smembers("always_swept"))
    assert redis_client.smembers("always_swept") == {b"retries"}


def test_a_new_leader_reads_the_list_at_once(channel):
    """The wake-up of a queue that came meanwhile may have gone to the one before, which is frozen."""
    leadership = Leadership(5)
    task = UnconsumedQueues(Queues(channel.session.commands, channel.session.keys, transient_ttl_s=300), leadership)
    leadership.renew(7, clock.now_s())
    task.run()
    assert task.next_run_at > clock.now_s()
    kombu.Queue("retries", durable=True, queue_arguments={"x-message-ttl": 1_000})(channel).declare()
    leadership.end()
    leadership.renew(9, clock.now_s())
    assert task.next_run_at == 0.0
    task.run()
    assert task.queues == ["retries"]
    assert task.next_run_at > clock.now_s()
