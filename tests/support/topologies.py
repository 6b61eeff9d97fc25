"""What the ordinary tests can run on beside one plain server: `pytest --topologies sentinel,cluster …`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.access import role_server
from tests.support.clusters import RunningCluster, running_cluster
from tests.support.prefixed_client import prefixed_client
from tests.support.sentinels import MASTER_NAME, sentinel_deployment
from tests.support.servers import Server, new_server, session_server
from tests.support.tls import TlsServer, make_certificates, tls_config, tls_program, tls_query

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.testing.server import EmbeddedServer

#: The mark `not_on("cluster", reason="…")` keeps a test from some of them, `not_on("all", reason="…")` from all.
MARK = "not_on"
ALL = "all"


@dataclass(frozen=True)
class Behind:
    """A plain server, and the URL of another form by which brokers reach it. Any other scheme names the server itself."""

    server: EmbeddedServer
    broker_url: Callable[[int], str]

    def url(self, db: int = 0, scheme: str = "redisplus") -> str:
        return self.broker_url(db) if scheme == "redisplus" else self.server.url(db, scheme)

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        return self.server.client(db, **options)


@dataclass(frozen=True)
class OnCluster:
    """Database 0 is a cluster, whose clients write the prefix before each key; the others are those of a plain server."""

    cluster: RunningCluster
    broker_url: str
    plain: EmbeddedServer

    def url(self, db: int = 0, scheme: str = "redisplus") -> str:
        if db:
            return self.plain.url(db, scheme)
        return self.broker_url if scheme == "redisplus" else self.cluster.owner.url(0, scheme)

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        if db:
            return self.plain.client(db, **options)
        return prefixed_client(self.cluster.owner.port, self.cluster.prefix, **options)


@contextmanager
def certificates() -> Iterator[Path]:
    """Give a folder with certificates for this machine."""
    with tempfile.TemporaryDirectory(prefix="celery-redis-plus-") as folder:
        yield make_certificates(Path(folder), "DNS:localhost,IP:127.0.0.1")


@contextmanager
def _tls() -> Iterator[Server]:
    with certificates() as folder, TlsServer(folder) as server:
        yield Behind(server, server.tls_url)


#: No failover by itself: the tests know one master, which is silent on a busy machine, and where a test freezes it.
_PATIENT = {"sentinel down-after-milliseconds": f"{MASTER_NAME} 600000"}


@contextmanager
def _sentinel() -> Iterator[Server]:
    with sentinel_deployment(sentinel_config=_PATIENT) as deployment:
        yield Behind(deployment.master, deployment.url)


@contextmanager
def _sentinel_tls() -> Iterator[Server]:
    with certificates() as folder, sentinel_deployment(certificates=folder, sentinel_config=_PATIENT) as deployment:
        yield Behind(deployment.master, lambda db: tls_url(deployment.url(db), folder))


@contextmanager
def _cluster() -> Iterator[Server]:
    with running_cluster() as cluster, new_server() as plain:
        yield OnCluster(cluster, cluster.url(), plain)


@contextmanager
def _cluster_tls() -> Iterator[Server]:
    with certificates() as folder, tls_cluster(folder) as cluster, new_server() as plain:
        yield OnCluster(cluster, tls_url(cluster.url(), folder), plain)


@contextmanager
def tls_cluster(folder: Path) -> Iterator[RunningCluster]:
    """Start a cluster whose nodes speak TLS, also with each other."""
    config = {**tls_config(folder), "tls-cluster": "yes", "tls-replication": "yes"}
    with running_cluster(config=config, program=tls_program()) as cluster:
        yield cluster


def tls_url(url: str, folder: Path) -> str:
    """Return the URL of Sentinels or of a cluster with TLS."""
    return f"{url.replace('redisplus+', 'redispluss+', 1)}{'&' if '?' in url else '?'}{tls_query(folder)}"


@contextmanager
def _acl() -> Iterator[Server]:
    with role_server("worker") as secured:
        yield Behind(secured.server, secured.url)


@contextmanager
def _unix() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="celery-redis-plus-") as folder:
        path = Path(folder) / "s"
        with new_server({"unixsocket": str(path)}) as server:
            yield Behind(server, lambda db: f"redisplus+socket://{path}?virtual_host={db}")


#: Name -> what starts it.
TOPOLOGIES = {
    "standalone": session_server,
    "sentinel": _sentinel,
    "sentinel-tls": _sentinel_tls,
    "cluster": _cluster,
    "cluster-tls": _cluster_tls,
    "tls": _tls,
    "acl": _acl,
    "unix": _unix,
}
#: Those beside one plain server.
NAMES = [name for name in TOPOLOGIES if name != "standalone"]


def parse(text: str) -> list[str]:
    """Return the names in the option `--topologies`; `all` are those beside one plain server."""
    names = NAMES if text == ALL else text.split(",")
    unknown = set(names) - set(TOPOLOGIES)
    if unknown:
        raise pytest.UsageError(f"--topologies: {', '.join(sorted(unknown))} is unknown; known: all, {', '.join(TOPOLOGIES)}")
    return names


def parameters(names: list[str], marks: Iterator[pytest.Mark]) -> list[Any]:
    """Return the parameters of a test: the topologies, of which those that its marks name are skipped."""
    reasons = {name: mark.kwargs["reason"] for mark in marks for name in (NAMES if mark.args == (ALL,) else mark.args)}
    skip = pytest.mark.skip
    return [pytest.param(name, marks=[skip(reason=reasons[name])] if name in reasons else []) for name in names]
