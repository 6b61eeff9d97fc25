"""Starts a master, its replicas and the Sentinels that watch them, on free ports of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import redis

from celery_redis_plus.testing.server import HOST, EmbeddedServer
from tests.support.ports import free_port
from tests.support.promotions import seconds_until_consumers_are_back
from tests.support.servers import new_server, server_program
from tests.support.tls import TlsServer, tls_config, tls_program
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

MASTER_NAME = "mymaster"
#: Milliseconds after which a Sentinel takes a silent master for down.
DOWN_AFTER_MS = 500
#: Seconds after which a failover by command is asked for again: on a busy machine a Sentinel gives one up.
PROMOTION_S = 10.0
#: Milliseconds after which a failover that did not succeed may be tried again, twice.
FAILOVER_TIMEOUT_MS = 3_000


def _fields(reply: Any) -> dict[str, str]:
    """Return a Sentinel's answer as a dict. Not by redis-py's methods, which fail in 6.4."""
    flat = [part for pair in reply.items() for part in pair] if isinstance(reply, dict) else reply
    texts = [part.decode() for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


class Sentinel(EmbeddedServer):
    """One Sentinel: the server's program with `--sentinel`, which keeps its state in its configuration file."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        password = lines.get("requirepass")
        self.speaks_tls = "tls-cert-file" in lines
        program = tls_program() if self.speaks_tls else server_program()
        super().__init__(config={"requirepass": password} if password else {}, binary=program)
        self._lines = dict(lines)

    def _launch(self, port: int) -> None:
        path = self.directory / "sentinel.conf"
        if not path.exists() or f"port {port}\n" not in path.read_text():
            # The first start, or another port because this one was taken.
            if self.speaks_tls:
                self._lines["tls-port"] = str(free_port())
            lines = {"port": str(port), "bind": HOST, "dir": str(self.directory), "protected-mode": "no", **self._lines}
            path.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._binary), str(path), "--sentinel"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def link_port(self) -> int:
        """The port by which clients and the others know it."""
        return int(self._lines["tls-port"]) if self.speaks_tls else self.port


def link_port(server: EmbeddedServer) -> int:
    """Return the port by which the Sentinels and the other servers know a server."""
    return server.link_port if isinstance(server, TlsServer) else server.port


class Deployment:
    """A master with replicas, and Sentinels. Each server may become the master."""

    def __init__(self, servers: list[EmbeddedServer], sentinels: list[Sentinel]) -> None:
        self.servers = servers
        self.sentinels = sentinels

    def url(self, db: int = 0, *, scheme: str = "redisplus", user: str = "", **query: Any) -> str:
        """Return `redisplus+sentinel://h1:p1;h2:p2;h3:p3/db?master_name=…`."""
        hosts = ";".join(f"{HOST}:{sentinel.link_port}" for sentinel in self.sentinels)
        pairs = "&".join(f"{name}={value}" for name, value in {"master_name": MASTER_NAME, **query}.items())
        return f"{scheme}+sentinel://{user}{hosts}/{db}?{pairs}"

    def kombu_urls(self, db: int = 0) -> str:
        """Return kombu's form: `sentinel://h1:p1/db;sentinel://h2:p2/db`."""
        return ";".join(f"sentinel://{HOST}:{sentinel.port}/{db}" for sentinel in self.sentinels)

    @property
    def master(self) -> EmbeddedServer:
        """The server that the first Sentinel that answers calls the master."""
        port = self._named_port()
        return next(server for server in self.servers if link_port(server) == port)

    def _named_port(self) -> int:
        for sentinel in self.sentinels:
            if sentinel.running:
                with sentinel.client() as client:
                    return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME)[1])
        raise AssertionError("no Sentinel runs")

    def client(self, db: int = 0) -> redis.Redis:
        """Return a new client of the master; the caller closes it."""
        return self.master.client(db)

    def failover(self) -> EmbeddedServer:
        """Let the Sentinels promote a replica, wait for that, and return the old master, which goes on for some seconds."""
        before = self.master
        for patience_s in (PROMOTION_S, PROMOTION_S, 30.0):
            with self.sentinels[0].client() as client, suppress(redis.ResponseError):
                client.execute_command("SENTINEL", "FAILOVER", MASTER_NAME)
            with suppress(TimeoutError):
                self.wait_for_promotion(before, patience_s)
                return before
        raise TimeoutError(f"no failover: {self.sentinels[0].log()[-3000:]}")

    def crash(self) -> EmbeddedServer:
        """End the master with SIGKILL, and return its successor."""
        return self.wait_for_promotion(self.kill_master())

    def kill_master(self) -> EmbeddedServer:
        """End the master with SIGKILL and return it; `wait_for_promotion` waits for its successor."""
        master = self.master
        master.kill()
        return master

    def wait_for_promotion(self, before: EmbeddedServer, timeout_s: float = 30.0) -> EmbeddedServer:
        """Return the master that has followed `before`, when it says so itself, and all Sentinels name it."""

        def promoted() -> EmbeddedServer | None:
            master = self.master
            if master is before or not master.running:
                return None
            with master.client() as client:
                return master if client.role()[0] == b"master" else None

        return wait_until(promoted, timeout_s, lambda: self.sentinels[0].log()[-3000:], interval_s=0.02)

    def seconds_until_consumers_are_back(self, promoted_at: float, timeout_s: float = 30.0) -> float:
        """Return how many seconds after a moment of the wall clock a consumer works at the primary."""
        return seconds_until_consumers_are_back(self.client, "", promoted_at, timeout_s)

    def wait_until_whole(self, timeout_s: float = 30.0) -> None:
        """Return when a failover may come: all servers run, each replica is in step, and each Sentinel knows all of that.

        What a Sentinel does ten seconds after a failover is done here at once: the old master becomes a replica.
        """
        master = self.master
        for server in self.servers:
            server.start()
            if server is not master:
                with server.client() as client:
                    client.replicaof(HOST, link_port(master))
        replicas, others = len(self.servers) - 1, len(self.sentinels) - 1

        def is_whole() -> bool:
            ports = set()
            for sentinel in self.sentinels:
                with sentinel.client() as client:
                    state = _fields(client.execute_command("SENTINEL", "MASTER", MASTER_NAME))
                    slaves = client.execute_command("SENTINEL", "SLAVES", MASTER_NAME)
                down = [one for one in map(_fields, slaves) if {"s_down", "disconnected"} & set(one["flags"].split(","))]
                ports.add(state["port"])
                known = (int(state["num-slaves"]), int(state["num-other-sentinels"]))
                if down or known != (replicas, others) or state["flags"] != "master":
                    return False
            if len(ports) > 1:
                return False
            with self.client() as client:
                links = [value for name, value in client.info("replication").items() if name.startswith("slave")]
            online = [link for link in links if isinstance(link, dict) and link["state"] == "online"]
            return len(online) == replicas

        wait_until(is_whole, timeout_s, lambda: self.sentinels[0].log()[-3000:], interval_s=0.05)


@contextmanager
def sentinel_deployment(
    *,
    replicas: int = 1,
    sentinels: int = 3,
    config: Mapping[str, str] | None = None,
    sentinel_config: Mapping[str, str] | None = None,
    certificates: Path | None = None,
    host: str = HOST,
) -> Iterator[Deployment]:
    """Start a master with replicas and Sentinels, and wait until they know each other.

    Args:
        replicas: how many.
        sentinels: how many; more than a half of them decide.
        config: directives of the servers. sentinel_config: lines of the Sentinels' files.
        certificates: a folder: with it servers and Sentinels speak TLS, also with each other.
        host: by which the servers know the master.
    """
    common = {"repl-diskless-sync-delay": "0", **(config or {})}
    tls = {} if certificates is None else {**tls_config(certificates), "tls-replication": "yes"}

    def server(config: Mapping[str, str]) -> EmbeddedServer:
        return new_server(config) if certificates is None else TlsServer(certificates, {**tls, **config})

    with ExitStack() as stack:
        master = stack.enter_context(server(common))
        place = f"{host} {link_port(master)}"
        following = {**common, "replicaof": place}
        servers = [master, *(stack.enter_context(server(following)) for _ in range(replicas))]
        lines = {
            "sentinel monitor": f"{MASTER_NAME} {place} {sentinels // 2 + 1}",
            "sentinel down-after-milliseconds": f"{MASTER_NAME} {DOWN_AFTER_MS}",
            "sentinel failover-timeout": f"{MASTER_NAME} {FAILOVER_TIMEOUT_MS}",
            **tls,
            **(sentinel_config or {}),
        }
        watching = [stack.enter_context(Sentinel(lines)) for _ in range(sentinels)]
        deployment = Deployment(servers, watching)
        deployment.wait_until_whole()
        yield deployment
