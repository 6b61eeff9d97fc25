"""The storm on Sentinels and on a cluster: nothing is lost beyond what replication lost, which is counted.

`tox -e chaos -- --chaos-full -k deployment_storm` runs it.
"""

from __future__ import annotations

import os
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.chaos.app import EARLY, STALLS_VARIABLE
from tests.chaos.crew import Crew
from tests.chaos.faults.kinds import kinds_of
from tests.chaos.load.queues import ARGUMENTS, BINDINGS, CONSUMED
from tests.chaos.load.sources import Sources
from tests.chaos.state import check_invariants
from tests.chaos.storm import Storm
from tests.chaos.test_storm import (
    CONCURRENCY,
    FULL_REST_S,
    OPTIONS,
    PATIENCE_S,
    PREFETCH,
    VISIBILITY_TIMEOUT_S,
    WORKERS,
    drain,
    stuck,
    task_length,
    weather,
)
from tests.support.clusters import RunningCluster, running_cluster
from tests.support.judge import recorder
from tests.support.judge.executions import count, repeats_of
from tests.support.judge.promises import at_least_once
from tests.support.judge.records import CONFIRMED, PUBLISH, History
from tests.support.judge.rules import Rules
from tests.support.prefixed_client import prefixed_client
from tests.support.sentinels import sentinel_deployment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full_only

#: Every write is on disk before it is confirmed: a server that is killed loses only what its replica has not got.
CONFIG = {"appendonly": "yes", "appendfsync": "always"}
RULES = Rules(acks=PREFETCH, early=frozenset({EARLY}))


@dataclass(frozen=True)
class Primary:
    """What the storm knows as the server, and as the place that clients connect to: whichever server is the primary."""

    deployment: Any

    def url(self) -> str:
        url: str = self.deployment.url()
        return url

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client of the primary, whose keys are those of one server."""

        def found() -> redis.Redis | None:
            try:
                if isinstance(self.deployment, RunningCluster):
                    return prefixed_client(self.deployment.owner.port, self.deployment.prefix, **options)
                return self.deployment.master.client(**options)
            except (AssertionError, OSError, redis.RedisError):
                return None

        return wait_until(found, 30, "a primary")


@pytest.fixture(params=["sentinel", "cluster"])
def deployment(request):
    with (sentinel_deployment if request.param == "sentinel" else running_cluster)(config=CONFIG) as deployment:
        yield deployment


def faults_of(pool, chooser):
    kinds = kinds_of(pool, deployment=True)
    faults = [
        name for name, kind in kinds.items() for _ in range(kind.full if kind.deployment else max(kind.short, kind.full // 8))
    ]
    chooser.shuffle(faults)
    return faults


@pytest.mark.judged(**asdict(RULES))
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_nothing_is_lost_but_what_replication_lost(
    *, pool, deployment, seed, tmp_path, ledger, chaos_app, chaos_worker, figures, tally
):
    chooser = random.Random(seed)
    stalls = tmp_path / "stalls"
    stalls.mkdir()
    config = {
        "task_acks_late": True, "task_reject_on_worker_lost": True, "broker_transport_options": OPTIONS, "queues": ARGUMENTS,
        "bindings": BINDINGS,
    }  # fmt: skip
    times = {"visibility_timeout": VISIBILITY_TIMEOUT_S}

    def worker(url, clock):
        env = {STALLS_VARIABLE: str(stalls)}
        return chaos_worker(url, pool=pool, config=config, env=env, queues=CONSUMED, concurrency=CONCURRENCY, **times)

    def publisher_app(**options):
        return chaos_app(primary.url(), queues=ARGUMENTS, bindings=BINDINGS, broker_transport_options=options, **times)

    primary = Primary(deployment)
    crew = Crew(worker, [primary] * WORKERS)
    storm = Storm(primary, crew, primary, VISIBILITY_TIMEOUT_S, seed, stalls=stalls, deployment=deployment)
    crew.start()
    sources = Sources(storm, ledger, publisher_app, length=task_length, most=None)
    storm.behind = sources.behind
    sources.start()
    weather(storm, faults_of(pool, chooser), FULL_REST_S, ledger)
    sources.finish(at_once=True, timeout_s=PATIENCE_S)
    names = sources.names()
    with primary.client() as client:
        drain(client, names, ledger, lambda: stuck(seed, sorted(names - set(ledger.ended())), client, storm, ledger))
        assert crew.stop() == [0] * WORKERS
        check_invariants(client)
    history = History.read(Path(os.environ[recorder.VARIABLE]), ledger.records())
    verdicts = count(repeats_of(history, RULES))
    tally.add(pool, storm, repeats_of(history, RULES))
    confirmed = {one.name for publisher in sources.plain for one in publisher.confirmed}
    lost = confirmed - set(ledger.ended())
    failovers = storm.done["fail_over"] + storm.done["crash_primary"]
    figures(
        f"seed {seed}, {sum(storm.done.values())} faults, {failovers} of them failovers: "
        f"{len(confirmed)} plain tasks confirmed, {len(lost)} lost by replication, {len(gone(history))} by the judge's count; "
        f"beyond that lost {len(names - set(ledger.ended()))}; {dict(sorted(storm.done.items()))}; "
        f"repeats {sum(verdicts.values())}: " + ", ".join(f"{verdict.value} {number}" for verdict, number in verdicts.items())
    )
    assert storm.failures == []
    assert lost == gone(history)


def gone(history):
    """Return the plain tasks that the judge counts as lost by replication: confirmed, and gone, when a failover may undo that."""
    found = set()
    for publish in history.of(PUBLISH):
        outcome = history.outcome(publish)
        is_plain = publish.queue == "celery" and publish.name[:1] in {"a", "b"}
        if is_plain and outcome is not None and outcome.kind == CONFIRMED:
            settled = any(record.kind in at_least_once.SETTLED for record in history.of_message(publish.name))
            found |= set() if settled else {publish.name}
    return found
