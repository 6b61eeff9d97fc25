"""`advance`: what is delayed, expires, is remembered or dead gets older; what a worker holds does not."""

import pytest
from kombu import Queue

from celery_redis_plus import browse, message
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import Keys
from celery_redis_plus.testing import advance, drain, enqueued
from tests.support.checking import found
from tests.support.waiting import PATIENCE_S


def test_a_delayed_task_runs_when_its_time_has_come(add):
    result = add.apply_async((1, 2), countdown=3600)
    advance(3590)
    assert drain() == 0
    advance(10)
    assert drain() == 1
    assert result.get(timeout=PATIENCE_S) == 3


def test_a_delay_that_begins_afterwards_has_its_full_length(add):
    advance(3600)
    add.apply_async((1,), countdown=60)
    advance(50)
    assert enqueued(add)[0].eta is not None
    advance(10)
    assert enqueued(add)[0].eta is None


def test_promoted_tasks_stand_in_the_order_of_their_times(add):
    for number, countdown in ((3, 300), (1, 100), (2, 200)):
        add.apply_async((number,), countdown=countdown)
    add.apply_async((0,), countdown=300, priority=9)
    advance(400)
    add.delay(9)
    assert [task.args[0] for task in enqueued(add)] == [0, 1, 2, 3, 9]


def test_an_expired_task_waits_first_for_a_worker_that_revokes_it(app, add):
    add.delay(0)
    add.apply_async((1,), expires=60)
    advance(50)
    assert [task.args for task in enqueued(add)] == [[0], [1]]
    advance(11)
    assert [task.args for task in enqueued(add)] == [[1], [0]]
    assert list(browse("celery", connection=app, state="dead")) == []


def test_a_retry_queue_leads_back_to_its_queue(app, add):
    arguments = {"x-message-ttl": 30_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "celery"}
    app.amqp.queues.add(Queue("later", routing_key="later", queue_arguments=arguments))
    add.apply_async((1,), queue="later")
    advance(31)
    assert [task.queue for task in enqueued(add)] == ["celery"]


def test_a_duplicate_is_forgotten_after_its_time(add):
    def publish():
        add.apply_async(
            (1,), headers={"x-deduplication-id": "one", "x-deduplication-ttl": 60_000, "x-deduplication-scope": "ttl"}
        )
        return len(enqueued(add))

    assert [publish(), publish()] == [1, 1]
    advance(61)
    assert publish() == 2


def test_a_message_stays_with_its_holder(app, add):
    add.delay(1)
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        held = queue.get(timeout=PATIENCE_S)
        advance(86_400)
        assert message(app, held.delivery_tag).state == "PROCESSING"
        held.ack()
        queue.close()
    assert enqueued(add) == []


def test_a_queue_is_consistent_afterwards(app, add, redis_client):
    add.apply_async((1,), countdown=60, expires=120)
    add.apply_async((2,), expires=30)
    add.apply_async((3,), countdown=600)
    advance(61)
    assert found(redis_client, Keys()) == []


@pytest.mark.parametrize("seconds", [0, -1, 1e10])
def test_an_impossible_time_is_refused(app, seconds):
    with pytest.raises(InvalidArgument, match="'seconds' of advance is"):
        advance(seconds)


@pytest.mark.parametrize("rule", ["1/h burst=1", "1/h window"])
def test_a_limiter_has_room_when_its_time_has_passed(rule, app):
    ran = []

    @app.task(name="limited", rate_limit=f"a:{rule}", shared=False)
    def limited(number):
        ran.append(number)

    for number in range(3):
        limited.delay(number)
    drain()
    for expected in ([0], [0, 1], [0, 1, 2]):
        assert ran == expected
        advance(3600)
        drain()
