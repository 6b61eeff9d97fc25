"""A list of URLs: kombu goes on to the next one where a server is unreachable."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.errors import ServerUnreachable
from tests.support.sentinels import sentinel_deployment
from tests.support.servers import new_server

AWAY = "redisplus://127.0.0.1:1/0"


@pytest.fixture
def failing_over(broker_url):
    with kombu.Connection([AWAY, broker_url], failover_strategy="round-robin") as connection:
        yield connection


@pytest.mark.parametrize("way", ["channel", "default_channel", "ensure_connection"])
def test_a_channel_is_opened_on_the_server_that_answers(way, failing_over):
    channel = getattr(failing_over, way)
    if callable(channel):
        channel = channel()
    if way == "ensure_connection":
        channel = failing_over.channel()
    assert f"{failing_over.hostname}:{failing_over.port}" != "127.0.0.1:1"
    assert channel.connection is failing_over.transport
    assert failing_over.transport.channels == [channel]
    channel.queue_declare("q")
    channel.basic_publish(channel.prepare_message(b"1"), exchange="", routing_key="q")
    assert channel.basic_get("q", no_ack=True).body == b"1"
    channel.close()
    assert failing_over.transport.channels == []


def switched_to(url):
    """Return the sizes of a queue behind the second URL of a list, whose first one is not served."""
    with kombu.Connection([AWAY, url]) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        return channel.queue_sizes("q")


def test_a_later_url_of_a_list_may_be_a_sockets(tmp_path):
    with new_server({"unixsocket": str(tmp_path / "s")}) as server:
        assert switched_to(f"redisplus+socket://{tmp_path / 's'}?virtual_host=1").ready == 0
        assert server.client(1).exists("meta:{q}")


def test_a_later_url_of_a_list_may_be_one_sentinels():
    with sentinel_deployment(sentinels=1) as deployment:
        assert switched_to(deployment.url(1)).ready == 0
        assert deployment.client(1).exists("meta:{q}")


def test_a_list_of_servers_that_are_all_away_says_so():
    with pytest.raises(ServerUnreachable), kombu.Connection([AWAY, "redisplus://127.0.0.1:2/0"]) as connection:
        connection.channel()
