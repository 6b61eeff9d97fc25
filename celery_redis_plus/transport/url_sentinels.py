"""URLs with Sentinels, or with the nodes of a cluster, of which kombu understands no form.

kombu (5.6, 5.7) splits every URL at `;` into URLs of a failover list, and `redisplus+sentinel://h1;h2/0` with them. So the pieces
are put together again, with commas, which kombu leaves alone: here, where our transport gets a connection, and by
`configure_app` before kombu sees the setting. kombu's own form is a list of `sentinel://` URLs, one for each Sentinel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from celery_redis_plus.connection.host_lists import SENTINEL_SCHEME, kind_of
from celery_redis_plus.errors import InvalidAddress


def names_several_hosts(url: object) -> bool:
    """Return whether `url` names Sentinels, or nodes of a cluster."""
    return isinstance(url, str) and "://" in url and kind_of(url.strip().partition("://")[0]) is not None


def joined(pieces: Iterable[str]) -> list[str]:
    """Return a list of URLs that was split at each `;`, with those that name several hosts in one piece again."""
    urls: list[list[str]] = []
    for piece in pieces:
        if urls and "://" not in piece and names_several_hosts(urls[-1][0]):
            urls[-1].append(piece.strip())
        else:
            urls.append([piece])
    return [_joined(parts) for parts in urls]


def _joined(parts: Sequence[str]) -> str:
    """Return the parts of a URL that was split at each `;`, which separates hosts, or belongs to a password."""
    if len(parts) == 1:
        return parts[0]
    user, at, hosts = ";".join((parts[0].rstrip(), *parts[1:])).rpartition("@")
    return user.replace(";", "%3B") + at + hosts.replace(";", ",")


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
    """Return user information, hosts, path and query. What stands before the last `@` may be a password that is not encoded."""
    user, _, rest = url.partition("://")[2].rpartition("@")
    place, _, query = rest.partition("?")
    hosts, _, path = place.partition("/")
    return user, hosts, path, query


def mend(client: Any) -> None:
    """Put the URLs of a kombu Connection together again where kombu has split them at `;`; idempotent.

    kombu reads `alt` and `cycle` when it fails over or copies a connection. `hostname` and `uri_prefix` are what it makes
    of a URL with a `+`; when it fails over it leaves the prefix of the last one. `celery inspect stats` shows them and the
    options, and leaves out `password`: so the URL with its secrets is kept there.
    """
    alternates = list(client.alt or ())
    urls = joined(alternates)
    if len(urls) < len(alternates):
        if names_several_hosts(urls[0]):
            client.hostname = urls[0]
        client.alt = urls if len(urls) > 1 else []
        client.cycle = None
        if client.alt:
            client.cycle = client.failover_strategy(client.alt)
            next(client.cycle)
    hostname = client.hostname or ""
    if names_several_hosts(hostname):
        prefix, plus, rest = hostname.partition("+")
        if plus and "://" in rest:
            client.uri_prefix, client.hostname = prefix, rest
        _hide_secrets(client)
    elif client.uri_prefix and "://" not in hostname:
        client.uri_prefix = None


def _hide_secrets(client: Any) -> None:
    """Move a URL with secrets to `client.password`, and leave in `client.hostname` what everyone may read."""
    public = _without_secrets(client.hostname)
    if public != client.hostname and not callable(client.password):
        scheme = client.hostname.partition("://")[0]
        user, hosts, path, query = _parts(client.hostname)
        if client.password and not names_several_hosts(client.password) and not user:
            user = f"{quote(client.userid or '', safe='')}:{quote(client.password, safe='')}"
        client.password = f"{scheme}://{user}{'@' if user else ''}{hosts}/{path}{'?' if query else ''}{query}"
        client.hostname = public
    options = client.transport_options or {}
    kwargs = options.get("sentinel_kwargs")
    if isinstance(kwargs, Mapping) and not isinstance(kwargs, HiddenKwargs):
        client.transport_options = {**options, "sentinel_kwargs": HiddenKwargs(kwargs)}


def with_secrets(client: Any) -> str:
    """Return the URL with several hosts of a kombu Connection as its user wrote it."""
    return str(client.password if names_several_hosts(client.password) else client.hostname)


class HiddenKwargs(dict[str, Any]):
    """The option `sentinel_kwargs`, as it may be printed and sent; what it hides is in `real`."""

    def __init__(self, real: Mapping[str, Any]) -> None:
        """Hide the secrets of `real`."""
        super().__init__({name: _shown(name, value) for name, value in real.items()})
        self.real = dict(real)


def _shown(name: str, value: Any) -> Any:
    if is_secret(name) and value:
        return "**"
    return value if value is None or isinstance(value, str | int | float) else f"<{type(value).__name__}>"


def is_secret(name: str) -> bool:
    """Return whether the value of this name in a query, or of this option, is for no reader."""
    return "password" in str(name).lower()


def _without_secrets(url: str) -> str:
    scheme = url.partition("://")[0]
    user, hosts, path, query = _parts(url)
    name = user.partition(":")[0]
    # Piece by piece, as they stand there: this URL is read again.
    pieces = [piece for piece in query.split("&") if not is_secret(piece.partition("=")[0])]
    return f"{scheme}://{name}{'@' if name else ''}{hosts}/{path}{'?' if any(pieces) else ''}{'&'.join(pieces)}"


def masked(url: str, mask: str) -> str:
    """Return a URL with several hosts with `mask` in place of its passwords."""
    scheme = url.partition("://")[0]
    user, hosts, path, query = _parts(url)
    name, colon, password = user.partition(":")
    shown = f"{name}{colon}{mask if password else ''}@" if user else ""
    pairs = [(key, mask if is_secret(key) else value) for key, value in parse_qsl(query, keep_blank_values=True)]
    return f"{scheme}://{shown}{hosts}/{path}{'?' if pairs else ''}{urlencode(pairs, safe='*:/')}"
