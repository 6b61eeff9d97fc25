"""Turns every way to name our broker into the one that kombu understands: a URL with one of our schemes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from celery_redis_plus.transport.aliases import OWN_SCHEMES

PLAIN, TLS = OWN_SCHEMES

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

_URL = re.compile(rf"\s*({'|'.join(sorted(map(re.escape, SCHEMES), key=len, reverse=True))})(\+socket)?(://.*)", re.DOTALL)
_DOTTED_URL = re.compile(rf"\s*({'|'.join(sorted(map(re.escape, DOTTED), key=len, reverse=True))})(\+socket)?://")


def our_url(url: str) -> str:
    """Return one URL with our scheme where it names Redis, Valkey or our transport; any other URL as it is."""
    match = _URL.fullmatch(url)
    if match is None:
        return url
    scheme, socket, rest = match.groups()
    return f"{SCHEMES[scheme]}{socket or ''}{rest}"


def our_urls(urls: Any) -> Any:
    """Return a broker setting with our schemes: one URL, several in one str with `;` between them, or a sequence of URLs."""
    if isinstance(urls, str):
        return ";".join(our_url(url) for url in urls.split(";"))
    if isinstance(urls, Iterable):
        return [our_urls(url) for url in urls]
    return urls


def our_transport(transport: Any) -> Any:
    """Return our scheme where `transport` (Celery's `broker_transport`) names Redis or is ours; anything else as it is."""
    if isinstance(transport, str):
        return SCHEMES.get(transport, transport)
    where = f"{getattr(transport, '__module__', '')}:{getattr(transport, '__name__', '')}"
    return PLAIN if where in DOTTED else transport


def scheme_of(urls: Any) -> str | None:
    """Return our scheme if the first URL of a translated setting has one."""
    first = urls if isinstance(urls, str) else next(iter(urls or ()), None)
    if not isinstance(first, str) or "://" not in first:
        return None
    scheme = first.strip().partition("://")[0].partition("+")[0]
    return scheme if scheme in OWN_SCHEMES else None


def has_dotted_url(urls: Any) -> bool:
    """Return whether a setting has a URL with the transport's import path as its scheme, which kombu cannot even display."""
    if isinstance(urls, str):
        return any(_DOTTED_URL.match(url) for url in urls.split(";"))
    return isinstance(urls, Iterable) and any(has_dotted_url(url) for url in urls)
