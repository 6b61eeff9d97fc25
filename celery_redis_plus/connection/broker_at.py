"""Which broker a URL names: where it is, and the options by which its keys are found.

All that takes a URL from a user goes through here, so that a prefix in the URL holds for each command, source and sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from celery_redis_plus.connection.address import Address, url_options
from celery_redis_plus.connection.shard_layout import shard_of, shard_prefixes
from celery_redis_plus.errors import OptionError
from celery_redis_plus.options import Options

#: The name in a URL's query that names one of several shards.
SHARD = "shard"
#: What a migration calls the queue of messages whose queue is unknown.
NO_QUEUE = "?"


def prefix_at(url: str, prefix: str | None = None) -> str | None:
    """Return the `global_keyprefix` in the URL, or that which is given beside it; None where neither is.

    Raises:
        InvalidAddress: the query cannot be parsed.
        OptionError: they name two applications. An empty `prefix` names none.
    """
    in_url = url_options(url).get("global_keyprefix")
    if in_url is None:
        return prefix
    if prefix and prefix != in_url:
        raise OptionError(
            f"the URL has global_keyprefix={in_url}, and prefix {prefix!r} is given beside it; allowed is one of them"
        )
    return in_url


def broker_at(url: str, options: Mapping[str, Any] | None = None, *, prefix: str = "") -> tuple[Address, Options]:
    """Return where the broker of an application is, and its options: those in the URL first, then `prefix`, then `options`.

    `shard=2` beside `shards=3` in the URL names one of several shards.

    Raises:
        InvalidAddress: the URL cannot be used.
        OptionError: an option cannot, or URL and `prefix` name two applications; or none of several shards is named.
    """
    address, found = brokers_at(url, options, prefix=prefix)
    if len(found) > 1:
        raise OptionError(
            f"this is for one shard of the {len(found)} (transport option shards); allowed is the number of one: --shard on the "
            "command line, or shard=0 in the URL's query"
        )
    return address, found[0].options


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """One of several shards, or the only one."""

    number: int
    options: Options
    #: The app's own `global_keyprefix`.
    app_prefix: str

    def owns(self, queue: str) -> bool:
        """Return whether a queue is on this shard; a name that is none, such as `?`, is everywhere at home on the first one."""
        return (shard_of(queue, self.options.shards) if queue != NO_QUEUE else 0) == self.number


def brokers_at(
    url: str, options: Mapping[str, Any] | None = None, *, prefix: str = "", shard: int | None = None
) -> tuple[Address, list[ShardPlace]]:  # fmt: skip
    """Return the same for each shard, or for the one that `shard` or the URL names. Raises as `broker_at`."""
    given: dict[str, Any] = {"global_keyprefix": prefix_at(url, prefix)} if prefix else {}
    in_url: dict[str, Any] = url_options(url)
    named = in_url.pop(SHARD, None)
    parsed = Options.from_mapping({**(options or {}), **given, **in_url})
    return Address.from_url(url), shards_of(parsed, named if shard is None else shard)


def shards_of(options: Options, shard: int | str | None = None) -> list[ShardPlace]:
    """Return each shard of a broker with the options of an app, or the one that `shard` numbers.

    Raises:
        OptionError: there is no such shard.
    """
    prefix = options.global_keyprefix
    places = [
        ShardPlace(number, replace(options, global_keyprefix=own), prefix)
        for number, own in enumerate(shard_prefixes(prefix, options.shards))
    ]
    if shard is None:
        return places
    number = int(shard) if str(shard).isdecimal() else -1
    if not 0 <= number < len(places):
        allowed = f"0 to {len(places) - 1}" if len(places) > 1 else "0, since the transport option shards is 1"
        raise OptionError(f"there is no shard {shard!s:.40}; allowed: {allowed}")
    return [places[number]]
