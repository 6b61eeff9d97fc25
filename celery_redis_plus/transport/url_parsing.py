"""Lets transport options stand in a broker URL's query: `redisplus://host/0?visibility_timeout=60`.

kombu (5.6, 5.7) passes each name of a query to `Connection._init_params`, which ends in a TypeError for a name that kombu
does not know, before any code of a transport runs, and it has no hook in between. So the one function that takes a URL
apart, `kombu.connection.parse_url`, is wrapped when our transport is loaded, for our own schemes only: what stands in the
query travels on behind the database number, as it stood in the URL. There kombu carries it through `clone`, failover,
pickling and its pools, `as_uri` prints it (percent-encoded, and read back all the same), and the transport reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from celery_redis_plus.connection.address import check_host
from celery_redis_plus.transport.compat import PARSE_URL
from celery_redis_plus.transport.url_schemes import SOCKET, leads_to_us
from celery_redis_plus.transport.url_sentinels import is_secret

#: Query names that kombu itself understands, besides those that start with `ssl_`.
KOMBU_QUERY_NAMES = frozenset({"connect_timeout", "heartbeat", "insist", "login_method"})
#: Names of a query that are parts of the address, and what kombu calls them. A later one goes before an earlier one.
ADDRESS_QUERY_NAMES = {"db": "virtual_host", "virtual_host": "virtual_host", "username": "userid", "password": "password"}

ParseUrl = Callable[[str], dict[str, Any]]


def install() -> None:
    """Wrap kombu's `parse_url`; calling it again changes nothing."""
    from kombu import connection

    known: ParseUrl | None = PARSE_URL.of(connection)
    if known is not None and not hasattr(known, "knows_our_options"):
        PARSE_URL.set(connection, _knowing_our_options(known))


def _knowing_our_options(parse_url: ParseUrl) -> ParseUrl:
    def parse(url: str) -> dict[str, Any]:
        head, _, query = url.partition("?")
        if head.partition("://")[0].lower() == SOCKET and leads_to_us(SOCKET):
            # kombu would take the socket's path for a virtual host; `Address.from_parts` reads a host name that is a URL.
            return {**dict.fromkeys(("port", "userid", "password", "virtual_host")), "transport": SOCKET, "hostname": url}
        transport, plus, _ = head.partition("://")[0].lower().partition("+")
        if plus and leads_to_us(transport):
            # A later URL of a failover list, a socket or several hosts; `Address.from_parts` reads it, too.
            return {**dict.fromkeys(("port", "userid", "password", "virtual_host")), "transport": transport, "hostname": url}
        if not leads_to_us(transport):
            return parse_url(url)
        check_host(url)
        if not query:
            return parse_url(url)
        given = dict(parse_qsl(query, keep_blank_values=True))
        for_kombu = {name: value for name, value in given.items() if name in KOMBU_QUERY_NAMES or name.startswith("ssl_")}
        options = {name: value for name, value in given.items() if name not in for_kombu and name not in ADDRESS_QUERY_NAMES}
        # There is no such option, which is said by its name alone.
        options |= {name: "**" for name in options if is_secret(name)}
        parsed = parse_url(f"{head}?{urlencode(for_kombu)}" if for_kombu else head)
        parsed |= {field: given[name] for name, field in ADDRESS_QUERY_NAMES.items() if given.get(name)}
        if options:
            parsed["virtual_host"] = f"{parsed['virtual_host'] or ''}?{urlencode(options)}"
        return parsed

    parse.knows_our_options = True  # type: ignore[attr-defined]
    return parse
