"""Turns the other names of our broker (`redis://`, `unix://`, an import path) into a URL with one of our schemes."""

from __future__ import annotations

from celery_redis_plus.connection.host_lists import CLUSTER_SCHEME, SENTINEL_SCHEME
from celery_redis_plus.transport.url_schemes import PLAIN, SOCKET, TLS

#: The places where our Transport can be imported from. kombu takes them as a transport, never in a URL (kombu 5.7 refuses
#: schemes with a dot, and `urllib` sees no scheme where there is an underscore).
DOTTED = (
    "celery_redis_plus:Transport",
    "celery_redis_plus.transport:Transport",
    "celery_redis_plus.transport.transport:Transport",
)
#: What becomes which of our schemes.
SCHEMES = {
    **dict.fromkeys((PLAIN, "redis", "valkey", *DOTTED), PLAIN),
    **dict.fromkeys((TLS, "rediss", "valkeys"), TLS),
}
#: Behind a `+`: what a URL names in place of one host.
SUFFIXES = ("socket", SENTINEL_SCHEME, CLUSTER_SCHEME)
#: redis-py's form of a Unix socket, and kombu's of Sentinels -> the suffix that says the same.
ALONE = {SOCKET: "socket", SENTINEL_SCHEME: SENTINEL_SCHEME}


def our_url(url: str) -> str:
    """Return one URL with our scheme where it names Redis, Valkey or our transport; any other URL as it is."""
    scheme, separator, rest = url.strip().partition("://")
    # Schemes are case-insensitive (RFC 3986, 3.1), and kombu lowers them; import paths are not.
    lowered = scheme.lower()
    if separator and lowered in ALONE:
        return f"{PLAIN}+{ALONE[lowered]}://{rest}"
    ours = SCHEMES.get(scheme.partition("+")[0]) or SCHEMES.get(lowered.partition("+")[0])
    _, plus, suffix = lowered.partition("+")
    if not separator or ours is None or (plus and suffix not in SUFFIXES):
        return url
    return f"{ours}{plus}{suffix}://{rest}"
