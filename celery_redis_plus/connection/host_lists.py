"""URLs that name several hosts, of which each tells where the master is: Sentinels, or nodes of a cluster."""

from __future__ import annotations

import re

from celery_redis_plus.errors import InvalidAddress

#: The schemes, or their parts behind a `+`.
SENTINEL_SCHEME = "sentinel"
CLUSTER_SCHEME = "cluster"
#: Where they listen by default.
DEFAULT_PORTS = {SENTINEL_SCHEME: 26379, CLUSTER_SCHEME: 6379}
#: For messages.
EXAMPLES = {
    SENTINEL_SCHEME: "redisplus+sentinel://host1:26379;host2:26379/0?master_name=mymaster",
    CLUSTER_SCHEME: "redisplus+cluster://host1:6379;host2:6379/0",
}

_HOST = r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<name>[^\[\]:]+))(?::(?P<port>[0-9]{1,5}))?"


def kind_of(scheme: str) -> str | None:
    """Return which servers a URL of this scheme names, as `sentinel` or `cluster`; None for one server."""
    kind = scheme.lower().rpartition("+")[2]
    return kind if kind in DEFAULT_PORTS else None


def server_text(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def servers_text(hosts: tuple[tuple[str, int], ...]) -> str:
    """Return `host:port` of each, with commas between them."""
    return ",".join(server_text(host, port) for host, port in hosts)


def hosts_of(text: str, kind: str) -> tuple[tuple[str, int], ...]:
    """Return the hosts and ports in `h1:26379;h2` or `h1:26379,h2`, in a URL of this kind.

    Raises:
        InvalidAddress: there is none, or one of them cannot be read. The text is not quoted: it may hold a piece of a password.
    """
    found = []
    for place in re.split("[;,]", text):
        match = re.fullmatch(_HOST, place.strip())
        port = int(match["port"] or DEFAULT_PORTS[kind]) if match else 0
        if match is None or not 0 < port < 65536:
            raise InvalidAddress(
                f"the {kind.capitalize()} URL has no valid hosts and ports; allowed: {EXAMPLES[kind]}, ports from 1 to 65535. "
                "Special characters in a password are percent-encoded: / as %2F, ; as %3B, @ as %40"
            )
        found.append((match["ipv6"] or match["name"], port))
    return tuple(found)
