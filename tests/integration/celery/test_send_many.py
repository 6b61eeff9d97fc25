"""`send_many`: tasks that are published in batches."""

from __future__ import annotations

import kombu.exceptions
import pytest
from celery import group

from celery_redis_plus import send_many
from celery_redis_plus.errors import InvalidArgument, OptionError

with_batches = pytest.mark.skipif(not hasattr(kombu.exceptions, "BatchPublishError"), reason="kombu 5.6 has no batches")


@pytest.fixture
def app(celery_app):
    app = celery_app("configured")

    @app.task(shared=False)
    def add(x, y):
        return x + y

    app.add = add
    return app


def waiting(app):
    """Return the arguments of the tasks in the default queue, in their order."""
    with app.connection() as connection, connection.channel() as channel:
        found = []
        while (message := channel.basic_get(app.conf.task_default_queue, no_ack=True)) is not None:
            found.append(message.payload[0])
        return found


def test_tasks_are_published_in_their_order_and_their_results_returned(app):
    results = send_many(app.add.s(number, 1) for number in range(250))
    assert len({result.id for result in results}) == 250
    assert waiting(app) == [[number, 1] for number in range(250)]


@with_batches
def test_a_hundred_tasks_are_one_script_call(app, redis_client):
    app.add.delay(0, 0)
    before = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    send_many([app.add.s(number, 1) for number in range(100)])
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] <= before + 2


def test_groups_and_delayed_tasks_may_be_among_them(app):
    results = send_many([app.add.s(1, 1), group(app.add.s(2, 2), app.add.s(3, 3)), app.add.s(4, 4).set(countdown=600)])
    assert len(results[1].results) == 2
    assert waiting(app) == [[1, 1], [2, 2], [3, 3]]


def test_each_task_is_published_by_its_own_app(app, celery_app):
    """Two apps of one process may have different brokers, or prefixes."""
    other = celery_app("configured", broker_transport_options={"global_keyprefix": "other:"})

    @other.task(shared=False)
    def ship(x):
        return x

    results = send_many([app.add.s(1, 1), ship.s(2), app.add.s(3, 3)])
    assert [result.app for result in results] == [app, other, app]
    assert waiting(app) == [[1, 1], [3, 3]]
    assert waiting(other) == [[2]]


def test_nothing_is_published_for_nothing(app):
    assert send_many([]) == []


@pytest.mark.parametrize("wrong", [None, "x", {"task": "add"}])
@pytest.mark.parametrize("place", [0, 1])
def test_a_thing_that_is_no_signature_is_refused(app, wrong, place):
    given = [app.add.s(1, 1), app.add.s(2, 2)]
    given.insert(place, wrong)
    with pytest.raises(InvalidArgument, match="allowed are signatures") as caught:
        send_many(given)
    assert repr(wrong) in str(caught.value)
    assert [2, 2] not in waiting(app)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "10", None])
def test_the_size_of_a_batch_is_checked(app, size):
    with pytest.raises(OptionError, match="argument 'batch_size' of send_many"):
        send_many([app.add.s(1, 1)], batch_size=size)


@with_batches
def test_a_producer_of_the_caller_is_used(app):
    with app.producer_pool.acquire(block=True) as producer, producer.batch() as batch:
        send_many([app.add.s(1, 1)], producer=producer)
        group(app.add.s(2, 2), app.add.s(3, 3)).apply_async(producer=producer)
        assert waiting(app) == []
        batch.flush()
    assert waiting(app) == [[1, 1], [2, 2], [3, 3]]
