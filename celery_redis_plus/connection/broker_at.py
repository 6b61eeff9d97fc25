"""Which broker a URL names: where it is, and the options by which its keys are found.

All that takes a URL from a user goes through here, so that a prefix in the URL holds for each command, source and sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_redis_plus.connection.address import Address, url_options
from celery_redis_plus.errors import OptionError
from celery_redis_plus.options import Options


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

    Raises:
        InvalidAddress: the URL cannot be used.
        OptionError: an option cannot, or URL and `prefix` name two applications.
    """
    given = {"global_keyprefix": prefix_at(url, prefix)} if prefix else {}
    return Address.from_url(url), Options.from_mapping({**(options or {}), **given, **url_options(url)})
