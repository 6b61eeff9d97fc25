"""The access rules of docs/access.md are enough on a cluster, also after a failover."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.access_rules import ROLES
from celery_redis_plus.cli.main import main
from celery_redis_plus.connection.cluster_address import one_slot_prefix
from celery_redis_plus.errors import MasterNotFound
from tests.integration.shards.conftest import named
from tests.support.access import PASSWORD, grant, refusals
from tests.support.inbox import Inbox, publish
from tests.support.services import end_services

#: What docs/topologies.md adds for a cluster.
ON_A_CLUSTER = ("+cluster|slots", "+cluster|nodes")
#: And for shards.
SHARDS_KEYS = "~{celery-redis-plus;*"


@pytest.fixture
def secured(cluster):
    """The cluster, with the users of all roles on each node."""
    cluster.wait_until_whole()
    for node in cluster.nodes:
        with node.client() as admin:
            grant(admin, one_slot_prefix(""), *ON_A_CLUSTER, SHARDS_KEYS)
    yield cluster
    end_services()
    for node in cluster.nodes:
        if node.running:
            node.ask("ACL", "DELUSER", *(role.name for role in ROLES))


def use(cluster, body, shards):
    """Publish, consume and look, each with its own user."""
    worker, publisher, monitor = (
        cluster.url(user=f"{role}:{PASSWORD}@") + f"?shards={shards}" for role in ("worker", "publisher", "monitor")
    )
    queues = [named(shard, shards=shards) for shard in range(shards)]
    with kombu.Connection(worker) as consuming, kombu.Connection(publisher) as publishing:
        inbox = Inbox(consuming.channel(), *queues)
        for queue in queues:
            publish(publishing.default_channel, queue, body)
        assert inbox.drain(shards) == [body] * shards
        inbox.cancel()
    for queue in queues:
        for command in (["check"], ["queues"], ["consumers", queue], ["counters", queue], ["dead-letters", "list", queue]):
            assert main([*command, "--url", monitor]) == 0


@pytest.mark.parametrize("shards", [1, 3])
def test_worker_publisher_and_monitor_do_their_work_before_and_after_a_failover(secured, shards):
    use(secured, "before", shards)
    secured.failover()
    # Until each node knows the new owner, a connection may be redirected (MOVED) once.
    secured.wait_until_whole()
    use(secured, "after", shards)
    for node in secured.nodes:
        with node.client() as admin:
            assert refusals(admin) == []


def test_without_the_rights_for_clusters_the_owner_is_not_found(secured):
    for node in secured.nodes:
        node.ask("ACL", "SETUSER", "publisher", *(right.replace("+", "-") for right in ON_A_CLUSTER))
    url = secured.url(user=f"publisher:{PASSWORD}@")
    options = {"socket_connect_timeout": 0.5}
    with kombu.Connection(url, transport_options=options) as connection, pytest.raises(MasterNotFound, match=r"cluster\|slots"):
        connection.connect()
