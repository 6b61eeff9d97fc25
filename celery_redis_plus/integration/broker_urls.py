"""Turns every way to name our broker into the one that kombu understands: a URL with one of our schemes.

What names another broker is told apart here, too: `check_broker`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_redis_plus.errors import InvalidAddress
from celery_redis_plus.transport.url_aliases import DOTTED, SCHEMES, SUFFIXES, our_url
from celery_redis_plus.transport.url_schemes import OWN_SCHEMES, PLAIN
from celery_redis_plus.transport.url_sentinels import joined, merged

#: What a user may write, for messages; with `+socket` for a Unix socket.
ALLOWED = (
    "redisplus://, redispluss://, redis://, rediss://, valkey:// and valkeys://, for Unix sockets with +socket, or unix://, for "
    "Sentinels with +sentinel, or sentinel://, for Redis Cluster with +cluster"
)
#: How the names of kombu's transports begin that speak to Redis or Valkey: an app that is configured with us never uses them
#: unasked.
REDIS_OF_KOMBU = ("redis", "valkey", "sentinel", "kombu.transport.redis", "kombu.transport.valkey")


def our_urls(urls: Any) -> Any:
    """Return a broker setting with our schemes: one URL, several in one str with `;` between them, or a sequence of URLs."""
    if isinstance(urls, str):
        return ";".join(map(our_url, merged(_split(urls))))
    if isinstance(urls, Iterable):
        urls = list(urls)
        if all(isinstance(url, str) for url in urls):
            urls = merged([";".join(merged(_split(url))) for url in urls])
        return [our_urls(url) for url in urls]
    return urls


def _split(urls: str) -> list[str]:
    """Return the URLs of a failover list; those with several hosts stay in one piece."""
    return joined(url for url in urls.split(";") if url.strip())


def our_transport(transport: Any) -> Any:
    """Return our scheme where `transport` (Celery's `broker_transport`) names Redis or is ours; anything else as it is."""
    if isinstance(transport, str):
        return SCHEMES.get(transport) or SCHEMES.get(transport.lower(), transport)
    where = f"{getattr(transport, '__module__', '')}:{getattr(transport, '__name__', '')}"
    return PLAIN if where in DOTTED else transport


def scheme_of(urls: Any) -> str | None:
    """Return our scheme if the first URL of a translated setting has one."""
    first = urls if isinstance(urls, str) else next(iter(urls or ()), None)
    if not isinstance(first, str) or "://" not in first:
        return None
    scheme = first.strip().partition("://")[0].partition("+")[0]
    return scheme if scheme in OWN_SCHEMES else None


def check_broker(urls: Any, transport: Any) -> str | None:
    """Return the name of the transport that is not ours, of translated settings; None where all of them lead to ours.

    Raises:
        InvalidAddress: some URLs of a failover list lead to our transport, and others do not; or a URL leads to a transport of
            kombu for Redis.
    """
    names = _transports(urls, transport)
    others = [name for name in names if name not in OWN_SCHEMES]
    if not others:
        return None
    for name in others:
        if len(others) < len(names):
            problem = f"the broker URLs name {name!r} beside our transport, and a failover would leave it"
        elif name.lower().startswith(REDIS_OF_KOMBU):
            problem = f"the broker URL names {name!r}, a transport of kombu that this package does not replace"
        else:
            continue
        is_sentinel = "sentinel" in name.lower()
        hint = "; Sentinels are named so: redisplus+sentinel://host1:26379;host2:26379/0?master_name=NAME" if is_sentinel else ""
        raise InvalidAddress(f"{problem}; allowed in an app with configure_app: {ALLOWED}{hint}")
    return others[0]


def _transports(urls: Any, transport: Any) -> list[str]:
    """Return the transports to which kombu takes translated settings: the setting goes before the first URL's scheme."""
    named = _name(transport) if transport else None
    schemes = [scheme for url in _each(urls) if (scheme := _scheme(url))]
    if not schemes:
        # kombu's own default.
        return [named or "amqp"]
    # The setting is for the first URL only: kombu switches to another one by its scheme.
    return [named, *schemes[1:]] if named is not None and named not in OWN_SCHEMES else schemes


def _each(urls: Any) -> Iterable[str]:
    if isinstance(urls, str):
        yield from _split(urls)
    elif isinstance(urls, Iterable):
        for url in urls:
            yield from _each(url)


def _scheme(url: str) -> str:
    """Return what a URL's scheme means to kombu: `redisplus+socket` is our transport, `redis+x` is none."""
    scheme = url.strip().partition("://")[0].lower() if "://" in url else ""
    base, _, suffix = scheme.partition("+")
    return base if suffix in SUFFIXES or base not in {*OWN_SCHEMES, "redis", "rediss", "valkey", "valkeys"} else scheme


def _name(transport: Any) -> str:
    if isinstance(transport, str):
        return transport
    return f"{getattr(transport, '__module__', '')}:{getattr(transport, '__name__', transport)}"


def has_dotted_url(urls: Any) -> bool:
    """Return whether a setting has a URL with the transport's import path as its scheme, which kombu cannot even display."""
    if isinstance(urls, str):
        return any("://" in url and url.strip().partition("://")[0].partition("+")[0] in DOTTED for url in urls.split(";"))
    return isinstance(urls, Iterable) and any(has_dotted_url(url) for url in urls)
