"""A worker and a publisher under load, while the master is replaced."""

from __future__ import annotations

import logging
import time

import pytest
from kombu import pools

from tests.integration.sentinel.app import BROKER_VARIABLE, JOURNAL_VARIABLE, OPTIONS_VARIABLE, make_app
from tests.integration.sentinel.load import Load, Ran, check, more
from tests.support.sentinels import MASTER_NAME

logger = logging.getLogger(__name__)

#: Seconds after the promotion within which consumers work again.
BACK_WITHIN_S = 5.0
OPTIONS = {"master_name": MASTER_NAME, "wait_replicas": 1, "wait_replicas_timeout": 0.5, "visibility_timeout": 30}
POOLS = {"solo": 1, "threads": 4, "prefork": 2}


@pytest.fixture
def ran(server, broker_url):
    with server.client(1) as journal:
        yield Ran(journal)


@pytest.fixture
def start(deployment, server, broker_url, start_worker):
    """Start a worker, and return it with the app of the publisher."""
    apps = []

    def begin(pool, form="sentinels", **options):
        options = {**OPTIONS, **options}
        broker = deployment.url().partition("?")[0] if form == "sentinels" else deployment.kombu_urls()
        with deployment.client() as client:
            client.flushall()
        env = {
            BROKER_VARIABLE: broker,
            OPTIONS_VARIABLE: repr(options),
            JOURNAL_VARIABLE: server.url(1, "redis"),
        }
        worker = start_worker("tests.integration.sentinel.app", pool=pool, concurrency=POOLS[pool], env=env)
        apps.append(make_app(broker, options))
        return worker, apps[-1]

    yield begin
    for app in apps:
        app.close()
    pools.reset()


@pytest.mark.slow
def test_no_confirmed_message_is_lost_and_consumers_are_back(deployment, start, ran):
    worker, app = start("threads", "kombu's list")
    assert "/0?master_name=mymaster (master 127.0.0.1:" in worker.log()
    with Load(app) as load:
        for replace in (deployment.failover, deployment.crash, deployment.failover):
            deployment.wait_until_whole()
            more(load, worker)
            replace()
            back_s = deployment.seconds_until_consumers_are_back(time.time())
            logger.info("consumers are back %.2f s after the promotion (%s)", back_s, replace.__name__)
            assert back_s < BACK_WITHIN_S, worker.tail()
    check(load, ran, worker)


def test_shards_move_with_the_master(deployment, server, broker_url, start_worker):
    """All shards are on one master: a worker loses them together, or one after the other."""
    deployment.wait_until_whole()
    options = {"shards": 3, "global_keyprefix": "moving:", "wait_replicas": 1, "wait_replicas_timeout": 0.5}
    env = {BROKER_VARIABLE: deployment.url(), OPTIONS_VARIABLE: repr(options), JOURNAL_VARIABLE: server.url(1, "redis")}
    worker = start_worker("tests.integration.sentinel.app", pool="threads", env=env, queues=["celery", "other0", "other1"])
    app = make_app(deployment.url(), options)
    with server.client(1) as journal, Load(app) as load:
        more(load, worker)
        deployment.failover()
        more(load, worker, timeout_s=60)
    with server.client(1) as journal:
        check(load, Ran(journal), worker)
    app.close()
