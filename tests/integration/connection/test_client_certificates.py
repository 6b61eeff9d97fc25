"""Servers that want a certificate from each client: one server, Sentinels and a cluster, also after a failover."""

from __future__ import annotations

import pytest

from celery_redis_plus import errors
from tests.support.connections import opened_connections
from tests.support.sentinels import sentinel_deployment
from tests.support.tls import TlsServer
from tests.support.topologies import certificates, tls_cluster, tls_url
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder():
    with certificates() as folder:
        yield folder


@pytest.fixture
def open_connection():
    with opened_connections() as opened:
        yield opened


def without_client_certificate(url):
    return url.partition("&ssl_certfile")[0]


def test_one_server_wants_a_certificate(folder, open_connection):
    with TlsServer(folder) as server:
        assert open_connection(server.tls_url()).command("PING") == b"PONG"
        with pytest.raises(errors.TlsFailed, match="ssl_certfile and ssl_keyfile"):
            open_connection(without_client_certificate(server.tls_url()))


@pytest.mark.sample(1)
@pytest.mark.parametrize("names", ["addresses", "host names"])
def test_sentinels_and_their_master_want_one_before_and_after_a_failover(names, folder, open_connection):
    lines = {"sentinel resolve-hostnames": "yes", "sentinel announce-hostnames": "yes"} if names == "host names" else {}
    with sentinel_deployment(
        certificates=folder, sentinel_config=lines, host="localhost" if lines else "127.0.0.1"
    ) as deployment:
        url = tls_url(deployment.url(), folder)
        connection = open_connection(url)
        assert connection.command("PING") == b"PONG"
        with pytest.raises(errors.TlsFailed, match="ssl_certfile"):
            open_connection(without_client_certificate(url), socket_connect_timeout=0.3)
        for replace in (deployment.failover, deployment.crash):
            deployment.wait_until_whole()
            replace()
            assert wait_until(lambda: peer(connection) == deployment.master.link_port, 10)


def test_the_nodes_of_a_cluster_want_one_before_and_after_a_failover(folder, open_connection):
    with tls_cluster(folder) as cluster:
        url = tls_url(cluster.url(), folder)
        connection = open_connection(url)
        assert peer(connection) == cluster.owner.link_port
        with pytest.raises(errors.TlsFailed, match="ssl_certfile"):
            open_connection(without_client_certificate(url), socket_connect_timeout=0.3)
        for replace in (cluster.failover, cluster.crash):
            cluster.wait_until_whole()
            replace()
            assert wait_until(lambda: peer(connection) == cluster.owner.link_port, 10)


def peer(connection):
    """Return the port that answers, once one does."""
    try:
        connection.command("PING")
    except (errors.ServerUnreachable, errors.ReadOnlyReplica, errors.SlotUnavailable):
        return None
    return connection.peer[1]
