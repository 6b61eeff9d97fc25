"""Makes kombu know our URL schemes, and turns the other names of our broker into a URL with one of them.

kombu has no entry point group for transports, but `kombu.transport.TRANSPORT_ALIASES` is a plain dict, and kombu loads the
group `kombu.serializers` when `kombu.serialization` is imported, which importing a Celery app does (kombu 5.6 and 5.7,
`kombu/serialization.py`). So the distribution declares one serializer there, a second name for JSON, and the aliases come
along: an app needs no import of ours for `redisplus://` to work.
"""

from __future__ import annotations

import json
import logging

from celery_redis_plus.connection.host_lists import CLUSTER_SCHEME, SENTINEL_SCHEME
from celery_redis_plus.transport import compat

logger = logging.getLogger(__name__)

TRANSPORT = "celery_redis_plus.transport:Transport"

#: Schemes that are ours alone.
OWN_SCHEMES = PLAIN, TLS = "redisplus", "redispluss"
#: redis-py's scheme of a Unix socket, and schemes that kombu may define itself one day; then its definition stays.
SOCKET = "unix"
SHARED_SCHEMES = ("valkey", "valkeys", SOCKET)

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


def register() -> None:
    """Add our schemes to kombu's table; calling it again changes nothing. It never raises.

    kombu's loop over its entry points catches nothing: an error would break every `import kombu.serialization`, also in
    programs that never use this package.
    """
    try:
        table = compat.aliases()
        for scheme in OWN_SCHEMES:
            table[scheme] = TRANSPORT
        for scheme in SHARED_SCHEMES:
            table.setdefault(scheme, TRANSPORT)
    except Exception:
        logger.exception("kombu does not know the URL schemes redisplus:// and redispluss://")


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


def leads_to_us(scheme: str) -> bool:
    """Return whether kombu takes URLs of this scheme to our transport."""
    return scheme in OWN_SCHEMES or (scheme in SHARED_SCHEMES and compat.aliases().get(scheme) == TRANSPORT)


register()

#: What kombu unpacks into `register(name, *SERIALIZER)`: encoder, decoder, content type, content encoding.
SERIALIZER = (json.dumps, json.loads, "application/x-celery-redis-plus+json", "utf-8")
