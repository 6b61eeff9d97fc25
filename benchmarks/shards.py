"""``python -m benchmarks.shards``: what a message costs each node of a cluster, with one shard a primary.

One process publishes messages of 1 KB to 60 queues, then another one consumes and acks them. Two cores cannot fill six nodes,
so the figure is the nodes' own CPU time: a node that spends 10 µs on each message of the whole broker has room for 100,000 a
second, and the busiest node decides for all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from typing import Any

from kombu import Connection, Consumer, Queue

from celery_redis_plus.connection.shard_layout import shard_of
from tests.support.clusters import ClusterNode, RunningCluster, running_cluster

QUEUES = [f"orders.{number}" for number in range(60)]
BODY = "x" * 1024
#: Messages to one queue in a row. With one to each in turn, six servers drive each other out of the caches of two cores: the same
#: call then takes twice as long as on one server. A node with cores of its own does not do that.
BLOCK = 50
#: Messages before the measured ones: scripts are loaded, queues declared.
WARM_UP = len(QUEUES) * BLOCK
PREFETCH = 50


def _cpu_s(node: ClusterNode) -> float:
    """Return the CPU time that a node has used: in microseconds, while `/proc` counts in hundredths of a second."""
    with node.client() as client:
        used: Any = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _connection(url: str, shards: int) -> Connection:
    return Connection(url, transport_options={"shards": shards})


def _publish(url: str, shards: int, count: int) -> None:
    with _connection(url, shards) as connection, connection.Producer(serializer="raw") as producer:
        for number in range(count):
            producer.publish(
                BODY, routing_key=QUEUES[number // BLOCK % len(QUEUES)], content_type="text/plain", content_encoding="utf-8"
            )


def _consume(url: str, shards: int, count: int) -> None:
    taken = 0

    def take(message: Any) -> None:
        nonlocal taken
        taken += 1
        message.ack()

    with _connection(url, shards) as connection:
        queues = [Queue(name, durable=True) for name in QUEUES]
        with Consumer(connection, queues, on_message=take, prefetch_count=PREFETCH, accept=None):
            while taken < count:
                connection.drain_events(timeout=30)


def _through(url: str, shards: int, count: int) -> float:
    """Publish and consume so many messages; return the seconds."""
    began = time.monotonic()
    # One after the other: from a backlog claims are full, as they are where the nodes are busy.
    for work in (_publish, _consume):
        client = multiprocessing.Process(target=work, args=(url, shards, count))
        client.start()
        client.join()
        assert client.exitcode == 0  # noqa: S101 - a measurement of clients that failed says nothing
    return time.monotonic() - began


def measure(cluster: RunningCluster, shards: int, count: int) -> list[float]:
    """Return the CPU time that each node spends on a message of the broker, in µs; idle nodes' own work is taken off."""
    _through(cluster.url(), shards, WARM_UP)
    before = [_cpu_s(node) for node in cluster.nodes]
    took_s = _through(cluster.url(), shards, count)
    used = [_cpu_s(node) - old for node, old in zip(cluster.nodes, before, strict=True)]
    before = [_cpu_s(node) for node in cluster.nodes]
    time.sleep(2.0)
    idle = [(_cpu_s(node) - old) / 2.0 for node, old in zip(cluster.nodes, before, strict=True)]
    return [(cpu_s - took_s * rest) / count * 1e6 for cpu_s, rest in zip(used, idle, strict=True)]


def main() -> None:
    """Print a line for each size of the cluster."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__)
    parser.add_argument(
        "--messages", type=int, default=12_000, metavar="N", help="messages of each measurement, a multiple of 3000"
    )
    parser.add_argument("--primaries", default="1,3,6", metavar="N,...", help="sizes of the cluster")
    wanted = parser.parse_args()
    print("| primaries | queues a shard | µs a message, all nodes | µs, the busiest node | capacity, messages/s | a node |")
    print("|---|---|---|---|---|---|")
    for primaries in map(int, wanted.primaries.split(",")):
        with running_cluster(primaries=primaries, replicas=0) as cluster:
            costs = measure(cluster, primaries, wanted.messages)
        spread = Counter(shard_of(queue, primaries) for queue in QUEUES)
        counts = ", ".join(str(spread[shard]) for shard in range(primaries))
        capacity = 1e6 / max(costs)
        print(
            f"| {primaries} | {counts} | {sum(costs):.1f} | {max(costs):.1f} | {capacity:,.0f} | {capacity / primaries:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
