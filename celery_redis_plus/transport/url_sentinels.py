"""URLs with Sentinels, of which kombu understands neither form.

kombu (5.6, 5.7) splits every URL at `;` into URLs of a failover list, and `redisplus+sentinel://h1;h2/0` with them. So the pieces
are put together again, with commas, which kombu leaves alone: here, where our transport gets a connection, and by
`configure_app` before kombu sees the setting. kombu's own form is a list of `sentinel://` URLs, one for each Sentinel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from celery_redis_plus.connection.sentinel_address import SENTINEL_SCHEME, is_sentinel_scheme
from celery_redis_plus.errors import InvalidAddress

#: Names of a query whose values no text for a reader may hold.
_SECRETS = frozenset({"password", "sentinel_password", "ssl_password"})


def is_sentinel_url(url: object) -> bool:
    """Return whether `url` names Sentinels."""
    return isinstance(url, str) and "://" in url and is_sentinel_scheme(url.strip().partition("://")[0])


def joined(pieces: Iterable[str]) -> list[str]:
    """Return a list of URLs that was split at each `;`, with those that name Sentinels in one piece again."""
    urls: list[str] = []
    for piece in pieces:
        if urls and "://" not in piece and is_sentinel_url(urls[-1]):
            urls[-1] = f"{urls[-1].rstrip()},{piece.strip()}"
        else:
            urls.append(piece)
    return urls


def merged(urls: Sequence[str]) -> list[str]:
    """Return `urls` with those of kombu's scheme `sentinel://` as one, as kombu's transport takes them.

    Raises:
        InvalidAddress: they name different databases, users or passwords.
    """
    merged: list[str] = []
    place: int | None = None
    for url in urls:
        if url.strip().partition("://")[0].lower() != SENTINEL_SCHEME:
            merged.append(url)
        elif place is None:
            place = len(merged)
            merged.append(url.strip())
        else:
            merged[place] = _merged(merged[place], url.strip())
    return merged


def _merged(first: str, other: str) -> str:
    user, hosts, path, query = _parts(first)
    other_user, other_hosts, other_path, other_query = _parts(other)
    for mine, its in ((user, other_user), (path, other_path), (query, other_query)):
        if mine and its and mine != its:
            raise InvalidAddress(
                "the sentinel:// URLs of one list name different databases, users, passwords or options; allowed: the same in "
                "each, or only in one of them"
            )
    user, path, query = user or other_user, path or other_path, query or other_query
    return f"{SENTINEL_SCHEME}://{user}{'@' if user else ''}{hosts},{other_hosts}/{path}{'?' if query else ''}{query}"


def _parts(url: str) -> tuple[str, str, str, str]:
    """Return user information, hosts, path and query."""
    place, _, query = url.partition("://")[2].partition("?")
    netloc, _, path = place.partition("/")
    user, _, hosts = netloc.rpartition("@")
    return user, hosts, path, query


def mend(client: Any) -> None:
    """Put the URLs of a kombu Connection together again where kombu has split them at `;`; idempotent.

    kombu reads `alt` and `cycle` when it fails over or copies a connection. `hostname` and `uri_prefix` are what it makes
    of a URL with a `+`; when it fails over it leaves the prefix of the last one.
    """
    alternates = list(client.alt or ())
    urls = joined(alternates)
    if len(urls) < len(alternates):
        if is_sentinel_url(urls[0]):
            client.hostname = urls[0]
        client.alt = urls if len(urls) > 1 else []
        client.cycle = None
        if client.alt:
            client.cycle = client.failover_strategy(client.alt)
            next(client.cycle)
    hostname = client.hostname or ""
    if is_sentinel_url(hostname):
        prefix, plus, rest = hostname.partition("+")
        if plus and "://" in rest:
            client.uri_prefix, client.hostname = prefix, rest
    elif client.uri_prefix and "://" not in hostname:
        client.uri_prefix = None


def masked(url: str, mask: str) -> str:
    """Return a Sentinel URL with `mask` in place of its passwords."""
    scheme = url.partition("://")[0]
    user, hosts, path, query = _parts(url)
    name, colon, password = user.partition(":")
    shown = f"{name}{colon}{mask if password else ''}@" if user else ""
    pairs = [(key, mask if key in _SECRETS else value) for key, value in parse_qsl(query, keep_blank_values=True)]
    return f"{scheme}://{shown}{hosts}/{path}{'?' if pairs else ''}{urlencode(pairs, safe='*:/')}"
