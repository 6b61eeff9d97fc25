"""A failover to one of two replicas, while nobody consumes: only what every replica has confirmed is sure to be kept.

Sentinel promotes a replica, and learns a second later that it did. Until then the old master and its other replica go on
confirming publishes to each other, which both drop afterwards. A worker that ran them meanwhile would hide that.
"""

import pytest
from kombu import pools

from tests.integration.sentinel.app import make_app
from tests.integration.sentinel.load import Load
from tests.support.sentinels import sentinel_deployment
from tests.support.waiting import wait_until

#: Publishes that are confirmed before the failover, and behind it.
SOME = 150


@pytest.fixture(scope="module")
def deployment():
    with sentinel_deployment(replicas=2) as deployment:
        yield deployment


@pytest.fixture
def app(deployment):
    app = make_app(deployment.url(), {"wait_replicas": 2, "wait_replicas_timeout": 0.5})
    yield app
    app.close()
    pools.reset()


def drained(app):
    """Return the numbers of all waiting tasks, taken by a consumer that starts now."""
    numbers = set()
    with app.connection_for_read() as connection:
        while (message := connection.default_channel.basic_get("celery")) is not None:
            numbers.add(message.payload[0][0])
            message.ack()
    return numbers


@pytest.mark.slow
def test_what_all_replicas_have_confirmed_waits_for_a_consumer_after_the_failover(deployment, app):
    with Load(app, rate=150, publishers=2) as load:
        wait_until(lambda: len(load.confirmed) > SOME, 60, lambda: load.failure)
        deployment.failover()
        before = len(load.confirmed)
        deployment.wait_until_whole(60)
        wait_until(lambda: len(load.confirmed) > before + SOME, 60, lambda: load.failure)
    assert load.failure is None
    assert set(load.confirmed) - drained(app) == set()
