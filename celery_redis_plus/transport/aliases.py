"""Makes kombu know our URL schemes.

kombu has no entry point group for transports, but `kombu.transport.TRANSPORT_ALIASES` is a plain dict, and kombu loads the
group `kombu.serializers` when `kombu.serialization` is imported, which importing a Celery app does (kombu 5.6 and 5.7,
`kombu/serialization.py`). So the distribution declares one serializer there, a second name for JSON, and the aliases come
along: an app needs no import of ours for `redisplus://` to work.
"""

from __future__ import annotations

import json

TRANSPORT = "celery_redis_plus.transport:Transport"

#: Schemes that are ours alone.
OWN_SCHEMES = ("redisplus", "redispluss")
#: Schemes that kombu may define itself one day; then its definition stays.
SHARED_SCHEMES = ("valkey", "valkeys")


def register() -> None:
    """Add our schemes to kombu's table; calling it again changes nothing."""
    from kombu.transport import TRANSPORT_ALIASES

    for scheme in OWN_SCHEMES:
        TRANSPORT_ALIASES[scheme] = TRANSPORT
    for scheme in SHARED_SCHEMES:
        TRANSPORT_ALIASES.setdefault(scheme, TRANSPORT)


register()

#: What kombu unpacks into `register(name, *SERIALIZER)`: encoder, decoder, content type, content encoding.
SERIALIZER = (json.dumps, json.loads, "application/x-celery-redis-plus+json", "utf-8")
