"""A worker and a publisher under load, while the broker's slot gets another owner."""

from __future__ import annotations

import logging
import time

import pytest
from kombu import pools

from tests.integration.sentinel.app import BROKER_VARIABLE, JOURNAL_VARIABLE, OPTIONS_VARIABLE, make_app
from tests.integration.sentinel.load import Load, Ran, check, more

logger = logging.getLogger(__name__)

#: Seconds after the promotion within which consumers work again.
BACK_WITHIN_S = 5.0
OPTIONS = {"wait_replicas": 1, "wait_replicas_timeout": 0.5, "visibility_timeout": 60}


@pytest.fixture
def ran(server, broker_url):
    with server.client(1) as journal:
        yield Ran(journal)


@pytest.fixture
def begin(cluster, server, broker_url, start_worker):
    """Start a worker, and return it with the app of the publisher."""
    env = {BROKER_VARIABLE: cluster.url(), OPTIONS_VARIABLE: repr(OPTIONS), JOURNAL_VARIABLE: server.url(1, "redis")}
    worker = start_worker("tests.integration.sentinel.app", pool="threads", concurrency=4, env=env)
    app = make_app(cluster.url(), OPTIONS)
    yield worker, app
    app.close()
    pools.reset()


@pytest.mark.slow
def test_a_busy_queue_whose_slot_moves_loses_and_repeats_nothing(cluster, begin, ran):
    worker, app = begin
    assert "(node 127.0.0.1:" in worker.log()
    with Load(app) as load:
        for move in (cluster.migrate_key_by_key, *([cluster.migrate_at_once] if cluster.migrates_at_once else [])):
            cluster.wait_until_whole()
            more(load, worker)
            move()
            back_s = cluster.seconds_until_consumers_are_back(time.time())
            logger.info("consumers are back %.2f s after %s", back_s, move.__name__)
        more(load, worker)
    check(load, ran, worker)
    assert not ran.repeated()


@pytest.mark.slow
def test_a_failover_loses_nothing_confirmed_and_consumers_are_back(cluster, begin, ran):
    worker, app = begin
    with Load(app) as load:
        for replace in (cluster.failover, cluster.crash):
            cluster.wait_until_whole()
            more(load, worker)
            replace()
            back_s = cluster.seconds_until_consumers_are_back(time.time())
            logger.info("consumers are back %.2f s after %s", back_s, replace.__name__)
            assert back_s < BACK_WITHIN_S, worker.tail()
        # Its publishes want a replica again.
        cluster.wait_until_whole()
        more(load, worker)
    check(load, ran, worker)
