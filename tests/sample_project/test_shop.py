"""The shop's tests. They use `celery_redis_plus.testing` and pytest, and nothing else."""

from datetime import timedelta

import pytest
from shop import cancel_later, mail, order, refusals, sent, ship

from celery_redis_plus.testing import advance, assert_enqueued, drain, enqueued


@pytest.mark.usefixtures("redisplus_app")
def test_an_order_is_enqueued():
    order.delay(7, address="a@shop.example")
    assert_enqueued(order, args=(7,), kwargs={"address": "a@shop.example"}, queue="orders")


def test_an_order_is_confirmed_now_and_reviewed_in_a_week(redisplus_app):
    result = order.delay(7, "a@shop.example")
    assert drain() == 2
    assert result.get(timeout=5) == "order 7"
    assert sent == ["a@shop.example: order 7 is on its way"]
    assert_enqueued(mail, queue="mails", eta=timedelta(days=7))
    advance(6 * 86_400)
    assert drain() == 0
    advance(86_400)
    assert drain() == 1
    assert sent[1:] == ["a@shop.example: how was it?"]


def test_a_busy_courier_is_asked_again_each_minute(redisplus_app):
    refusals[7] = 2
    result = ship.delay(7)
    for _ in range(2):
        drain()
        assert_enqueued(ship, args=[7], eta=60)
        advance(60)
    drain()
    assert result.get(timeout=5) == 2


def test_a_worker_runs_tasks_while_a_test_goes_on(redisplus_worker):
    assert ship.delay(7).get(timeout=5) == 0
    order.delay(8, "b@shop.example")
    drain()
    assert sent == ["b@shop.example: order 8 is on its way"]
    advance(7 * 86_400)
    drain()
    assert len(sent) == 2


def test_orders_that_nobody_takes_in_time_are_dead(redisplus_app):
    order.apply_async((9, "c@shop.example"), expiration=600)
    advance(601)
    assert enqueued(order)[0].queue == "dead-orders"


def test_a_cancellation_is_remembered_until_it_ran(redisplus_app):
    cancel_later(7)
    cancel_later(7)
    assert len(enqueued(mail)) == 1


def test_each_test_begins_with_empty_queues(redisplus_app):
    assert enqueued() == []
