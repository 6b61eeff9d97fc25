"""Makes kombu know our URL schemes.

kombu has no entry point group for transports, but `kombu.transport.TRANSPORT_ALIASES` is a plain dict, and kombu loads the
group `kombu.serializers` when `kombu.serialization` is imported, which importing a Celery app does (kombu 5.6 and 5.7,
`kombu/serialization.py`). So the distribution declares one serializer there, a second name for JSON, and the aliases come
along: an app needs no import of ours for `redisplus://` to work.
"""

from __future__ import annotations

import json
import logging

from celery_redis_plus.transport import compat

logger = logging.getLogger(__name__)

TRANSPORT = "celery_redis_plus.transport:Transport"

#: Schemes that are ours alone.
OWN_SCHEMES = PLAIN, TLS = "redisplus", "redispluss"
#: redis-py's scheme of a Unix socket, and schemes that kombu may define itself one day; then its definition stays.
SOCKET = "unix"
SHARED_SCHEMES = ("valkey", "valkeys", SOCKET)


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


def leads_to_us(scheme: str) -> bool:
    """Return whether kombu takes URLs of this scheme to our transport."""
    return scheme in OWN_SCHEMES or (scheme in SHARED_SCHEMES and compat.aliases().get(scheme) == TRANSPORT)


register()

#: What kombu unpacks into `register(name, *SERIALIZER)`: encoder, decoder, content type, content encoding.
SERIALIZER = (json.dumps, json.loads, "application/x-celery-redis-plus+json", "utf-8")
