"""Failovers of a Redis Cluster, and moves of the broker's slot, in a loop and under load: nothing that is confirmed is lost."""

from __future__ import annotations

import logging
import random
import time

import pytest
from kombu import pools

from tests.integration.sentinel.app import BROKER_VARIABLE, JOURNAL_VARIABLE, OPTIONS_VARIABLE, make_app
from tests.integration.sentinel.load import Load, Ran
from tests.support.clusters import running_cluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full_only

logger = logging.getLogger(__name__)

FAILOVERS = 20
MOVES = 10
#: Seconds after the promotion within which consumers work again.
BACK_WITHIN_S = 5.0
OPTIONS = {"wait_replicas": 1, "wait_replicas_timeout": 0.5, "visibility_timeout": 60}
#: Seconds between two publishes of the one publisher: 500 a second at most.
PAUSE_S = 0.001


@pytest.fixture(autouse=True)
def _recorded():
    """Do not have the judge look: it does not know what a failover may lose. `Load` keeps the account."""


@pytest.fixture
def cluster():
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def begun(cluster, server, broker_url, start_worker):
    """A worker, the publisher's app, and what has run."""
    env = {BROKER_VARIABLE: cluster.url(), OPTIONS_VARIABLE: repr(OPTIONS), JOURNAL_VARIABLE: server.url(1, "redis")}
    worker = start_worker("tests.integration.sentinel.app", pool="threads", concurrency=4, env=env)
    app = make_app(cluster.url(), OPTIONS)
    with server.client(1) as journal:
        yield worker, app, Ran(journal)
    app.close()
    pools.reset()


def run(cluster, begun, changes):
    """Make the changes under load; return the load, what ran, and the slowest return of the consumers, in seconds."""
    worker, app, ran = begun
    slowest_s, began = 0.0, time.monotonic()
    with Load(app, pause_s=PAUSE_S) as load:
        for number, change in enumerate(changes):
            cluster.wait_until_whole()
            before = len(load.confirmed)
            wait_until(lambda: len(load.confirmed) > before + 200, 60, worker.tail)  # noqa: B023 - called at once
            change()
            back_s = cluster.seconds_until_consumers_are_back(time.time())
            logger.info("change %d (%s): consumers were back after %.2f s", number + 1, change.__name__, back_s)
            slowest_s = max(slowest_s, back_s)
        cluster.wait_until_whole()
        rate = len(load.confirmed) / (time.monotonic() - began)
    assert load.failure is None
    wait_until(lambda: not set(load.confirmed) - set(ran.times()), 90, worker.tail, interval_s=0.5)
    text = (
        f"{len(load.confirmed)} confirmed ({rate:.0f} a second), 0 lost, {len(load.unreplicated)} on too few replicas, "
        f"{len(load.unknown)} unknown, {len(ran.repeated())} repeated; slowest return {slowest_s:.2f} s; longest pause of the "
        f"publisher {load.longest_gap_s:.2f} s"
    )
    return text, ran, slowest_s


def test_no_message_that_a_replica_has_confirmed_is_lost(cluster, begun, figures):
    rng = random.Random(20)
    changes = [rng.choice((cluster.failover, cluster.kill_owner)) for _ in range(FAILOVERS)]
    text, _, slowest_s = run(cluster, begun, changes)
    figures(f"{FAILOVERS} failovers of a cluster, wait_replicas=1: {text}")
    assert slowest_s < BACK_WITHIN_S


def test_a_slot_that_moves_loses_and_repeats_nothing(cluster, begun, figures):
    ways = [cluster.migrate_key_by_key, *([cluster.migrate_at_once] if cluster.migrates_at_once else [])]
    # After a long move Celery is in one of its pauses, which grow from 2 s.
    text, ran, _ = run(cluster, begun, [ways[number % len(ways)] for number in range(MOVES)])
    figures(f"{MOVES} moves of the slot, wait_replicas=1: {text}")
    assert not ran.repeated()
