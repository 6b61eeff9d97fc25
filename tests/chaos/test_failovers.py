"""Failovers of Sentinels and of a cluster, and moves of its slot, under load: what is confirmed is kept, or counted.

`tox -e chaos -- --chaos-full -k test_failovers.py` runs all of it, `-k "test_failovers.py and cluster"` a part.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kombu import pools

from tests.integration.sentinel.app import BROKER_VARIABLE, JOURNAL_VARIABLE, OPTIONS_VARIABLE, make_app
from tests.integration.sentinel.load import Load, Ran, more
from tests.support.clusters import running_cluster
from tests.support.sentinels import sentinel_deployment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full_only

logger = logging.getLogger(__name__)

FAILOVERS, MOVES = 20, 10
#: Messages a second, published from so many threads.
RATE, PUBLISHERS = 500, 8
#: Messages that are confirmed before the next failover.
BETWEEN = 1_000
#: Seconds after the promotion within which consumers work again.
BACK_WITHIN_S = 5.0
REPLICATED = {"wait_replicas": 1, "wait_replicas_timeout": 0.5, "visibility_timeout": 60}
PLAIN = {"visibility_timeout": 60}


@pytest.fixture(autouse=True)
def _recorded() -> None:
    """Do not have the judge look: it does not know what a failover may lose. `Load` keeps the account."""


@pytest.fixture(params=["sentinel", "cluster"])
def deployment(request: pytest.FixtureRequest) -> Iterator[Any]:
    with (sentinel_deployment if request.param == "sentinel" else running_cluster)() as deployment:
        yield deployment


@dataclass(frozen=True)
class Account:
    """What has become of a run."""

    load: Load
    ran: Ran
    #: Messages a second that were confirmed while nothing failed over.
    rate: float
    back_s: list[float]
    lost: set[int]
    #: From when on the old master could have what no replica has, until it was master no more: of each change.
    spans: list[tuple[float, float]]

    @property
    def unexplained(self) -> set[int]:
        """The lost messages that were published while no master was replaced."""
        times = {number: self.load.times[number] for number in self.lost}
        return {
            number
            for number, (began, confirmed) in times.items()
            if not any(confirmed > first and began < last for first, last in self.spans)
        }

    def __str__(self) -> str:
        load = self.load
        return (
            f"{len(load.confirmed)} confirmed ({self.rate:.0f} a second between the changes), {len(self.lost)} lost, "
            f"{len(load.unreplicated)} on too few replicas, {len(load.unknown)} unknown, {len(self.ran.repeated())} repeated; "
            f"consumers back after {sorted(self.back_s)[len(self.back_s) // 2]:.2f} s, {max(self.back_s):.2f} s at the most; "
            f"longest pause of the publishers {load.longest_gap_s:.2f} s; load of the machine {os.getloadavg()[0]:.0f}"
        )


@pytest.fixture
def account(deployment, server, broker_url, start_worker) -> Iterator[Callable[..., Account]]:
    """Make changes under load, each when all is whole, and give the account: `account(changes, options)`."""
    apps = []
    journal = server.client(1)

    def make(changes: list[Callable[[], Any]], options: dict[str, Any]) -> Account:
        env = {
            BROKER_VARIABLE: deployment.url(),
            OPTIONS_VARIABLE: repr(options),
            JOURNAL_VARIABLE: server.url(1, "redis"),
        }
        worker = start_worker("tests.integration.sentinel.app", pool="threads", concurrency=4, env=env)
        apps.append(make_app(deployment.url(), options))
        back_s, spells_s, ran = [], 0.0, Ran(journal)
        alone, whole = [], []
        with Load(apps[-1], rate=RATE, publishers=PUBLISHERS) as load:
            for number, change in enumerate(changes):
                deployment.wait_until_whole(60)
                whole.append(began := time.monotonic())
                more(load, worker, BETWEEN, timeout_s=120)
                spells_s += time.monotonic() - began
                alone.append(_replicated_at(deployment))
                change()
                back_s.append(deployment.seconds_until_consumers_are_back(time.time()))
                logger.info("change %d (%s): consumers were back after %.2f s", number + 1, change.__name__, back_s[-1])
            deployment.wait_until_whole(60)
            whole.append(time.monotonic())
        assert load.failure is None
        wait_until(lambda: _is_drained(apps[-1]), 180, worker.tail, interval_s=0.5)
        lost = set(load.confirmed) - set(ran.times())
        return Account(load, ran, BETWEEN * len(changes) / spells_s, back_s, lost, [*zip(alone, whole[1:], strict=True)])

    yield make
    for app in apps:
        app.close()
    pools.reset()
    journal.close()


def _replicated_at(deployment: Any) -> float:
    """Return a moment, on the monotonic clock, until which a replica has all that the master has confirmed."""
    with deployment.client() as client:

        def mark() -> float | None:
            now = time.monotonic()
            client.set("marked", str(now))
            return now if client.wait(1, 1_000) else None

        return wait_until(mark, 60)


def _is_drained(app: Any) -> bool:
    with app.connection_for_read() as connection:
        sizes = connection.default_channel.queue_sizes("celery")
    return sizes.ready + sizes.delayed + sizes.unacked == 0


def failovers(deployment: Any, number: int) -> list[Callable[[], Any]]:
    """Return so many, by command and by SIGKILL."""
    rng = random.Random(20)
    return [rng.choice((deployment.failover, deployment.crash)) for _ in range(number)]


def test_no_message_that_a_replica_has_confirmed_is_lost(deployment, account, figures):
    found = account(failovers(deployment, FAILOVERS), REPLICATED)
    figures(f"{FAILOVERS} failovers, wait_replicas=1: {found}")
    assert found.lost == set()
    assert max(found.back_s) < BACK_WITHIN_S


def test_what_is_lost_without_waiting_for_replicas_is_counted(deployment, account, figures):
    found = account(failovers(deployment, FAILOVERS), PLAIN)
    figures(f"{FAILOVERS} failovers without wait_replicas: {found}")
    # How many they are goes by the machine: a failover loses what the old master confirmed alone.
    assert found.unexplained == set()
    assert max(found.back_s) < BACK_WITHIN_S


@pytest.mark.parametrize("deployment", ["cluster"], indirect=True)
def test_a_slot_that_moves_loses_and_repeats_nothing(deployment, account, figures):
    ways = [deployment.migrate_key_by_key, *([deployment.migrate_at_once] if deployment.migrates_at_once else [])]
    # After a long move Celery is in one of its pauses, which grow from 2 s: consumers may be back later than after a failover.
    found = account([ways[number % len(ways)] for number in range(MOVES)], REPLICATED)
    figures(f"{MOVES} moves of the slot, wait_replicas=1: {found}")
    assert (found.lost, sum(found.ran.repeated().values())) == (set(), 0)
