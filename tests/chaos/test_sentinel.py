"""Failovers in a loop, under load: nothing that was confirmed by a replica is lost, and what is lost without one is counted."""

from __future__ import annotations

import logging
import random
import time

import pytest
from kombu import pools

from tests.integration.sentinel.app import BROKER_VARIABLE, JOURNAL_VARIABLE, OPTIONS_VARIABLE, make_app
from tests.integration.sentinel.load import Load, Ran
from tests.support.sentinels import sentinel_deployment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full_only

logger = logging.getLogger(__name__)

FAILOVERS = 20
#: Seconds after the promotion within which consumers work again.
BACK_WITHIN_S = 5.0


@pytest.fixture(autouse=True)
def _recorded():
    """Do not have the judge look: it does not know what a failover may lose. `Load` keeps the account."""


@pytest.fixture
def deployment():
    with sentinel_deployment() as deployment:
        yield deployment


@pytest.fixture
def begin(deployment, server, broker_url, start_worker):
    """Start a worker with these options, and return it with the publisher's app."""
    apps = []

    def start(**options):
        options = {"visibility_timeout": 30, **options}
        env = {BROKER_VARIABLE: deployment.url(), OPTIONS_VARIABLE: repr(options), JOURNAL_VARIABLE: server.url(1, "redis")}
        worker = start_worker("tests.integration.sentinel.app", pool="threads", concurrency=4, env=env)
        apps.append(make_app(deployment.url(), options))
        return worker, apps[-1]

    yield start
    for app in apps:
        app.close()
    pools.reset()


def fail_over(deployment, rng):
    """Replace the master in one of the two ways; return how, and when another one was promoted."""
    if rng.random() < 0.5:
        deployment.failover()
        return "command", time.time()
    deployment.wait_for_promotion(deployment.kill_master())
    return "kill -9", time.time()


def run(deployment, ran, worker, app, failovers):
    """Fail over again and again under load; return the load and the slowest return of the consumers, in seconds."""
    rng = random.Random(20)
    slowest_s = 0.0
    with Load(app) as load:
        for number in range(failovers):
            deployment.wait_until_whole(60)
            more = len(load.confirmed)
            wait_until(lambda: len(load.confirmed) > more + 200, 60, worker.tail)  # noqa: B023 - called at once
            way, promoted_at = fail_over(deployment, rng)
            back_s = deployment.seconds_until_consumers_are_back(promoted_at)
            logger.info("failover %d (%s): consumers were back after %.2f s", number + 1, way, back_s)
            slowest_s = max(slowest_s, back_s)
        deployment.wait_until_whole(60)
    assert load.failure is None
    return load, slowest_s


def test_no_message_that_a_replica_has_confirmed_is_lost(deployment, begin, server, figures):
    worker, app = begin(wait_replicas=1, wait_replicas_timeout=0.5)
    with server.client(1) as journal:
        ran = Ran(journal)
        load, slowest_s = run(deployment, ran, worker, app, FAILOVERS)
        wait_until(lambda: not set(load.confirmed) - set(ran.times()), 90, worker.tail, interval_s=0.5)
        figures(
            f"{FAILOVERS} failovers, wait_replicas=1: {len(load.confirmed)} confirmed, 0 lost, {len(load.unreplicated)} on too "
            f"few replicas, {len(load.unknown)} unknown, {len(ran.repeated())} repeated; slowest return {slowest_s:.2f} s"
        )
        assert slowest_s < BACK_WITHIN_S


def test_what_is_lost_without_waiting_for_replicas_is_counted(deployment, begin, server, figures):
    worker, app = begin()
    with server.client(1) as journal:
        ran = Ran(journal)
        load, slowest_s = run(deployment, ran, worker, app, FAILOVERS // 2)
        with deployment.client() as client:
            wait_until(
                lambda: not client.zcard("queue:{celery}") and not client.zcard("messages_index:{celery}"), 90, worker.tail
            )
        lost = set(load.confirmed) - set(ran.times())
        figures(
            f"{FAILOVERS // 2} failovers without wait_replicas: {len(load.confirmed)} confirmed, {len(lost)} lost, "
            f"{len(ran.repeated())} repeated; slowest return {slowest_s:.2f} s"
        )
        # Each failover may lose what was published until the old master was left: a second, and what it takes to notice.
        assert len(lost) < len(load.confirmed) / 10
