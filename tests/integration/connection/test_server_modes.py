"""Servers that answer and cannot be a broker are refused at the connection, by publishers too."""

import kombu
import pytest

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.server_check import examine
from celery_redis_plus.errors import ClusterRedirected, InvalidAddress


def test_a_publisher_is_refused_by_a_node_of_a_cluster(start_server, closed_port):
    node = start_server({"cluster-enabled": "yes", "cluster-port": str(closed_port)})
    with pytest.raises(ClusterRedirected, match=r"a node of a Redis Cluster\. What to do: write redisplus\+cluster://"):
        kombu.Connection(node.url()).Producer().publish("x", routing_key="q")


def test_a_sentinel_is_refused():
    with pytest.raises(InvalidAddress, match="a Sentinel answers here"):
        examine({"redis_mode": "sentinel", "redis_version": "7.2.4"}, Address.from_url("redisplus://localhost:26379/0"))
