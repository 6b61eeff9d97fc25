"""Credential providers: an object, or the dotted path of its class as it can stand in a configuration or a
URL.
"""

from __future__ import annotations

import importlib
from typing import Any

from redis.credentials import CredentialProvider

from celery_redis_plus.errors import InvalidArgument


def resolve_credential_provider(given: Any) -> CredentialProvider | None:
    """Return the provider for `given`: None, a `redis.CredentialProvider`, or a path such as
    "package.module:Class" or "package.module.Class", which is imported and called without arguments.

    Raises:
        InvalidArgument: the path leads nowhere, or what it leads to is no `redis.CredentialProvider`.
    """
    if given is None or given == "":
        return None
    provider = _load(given)() if isinstance(given, str) else given
    if not isinstance(provider, CredentialProvider):
        what = repr(given) if isinstance(given, str) else f"an object of {type(given).__name__}"
        raise InvalidArgument(f"credential_provider: {what} is no redis.CredentialProvider, nor the path of such a class")
    return provider


def _load(path: str) -> Any:
    module, _, name = path.rpartition(":" if ":" in path else ".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise InvalidArgument(
            f"credential_provider={path!r} cannot be imported ({exc}); allowed: package.module:Class or package.module.Class"
        ) from exc
