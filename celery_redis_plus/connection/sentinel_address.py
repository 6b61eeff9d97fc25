"""The Sentinels of an address: where they listen, which master they watch, and how to log in to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.credentials import resolve_credential_provider
from celery_redis_plus.connection.host_lists import EXAMPLES, SENTINEL_SCHEME, servers_text
from celery_redis_plus.connection.tls import is_tls_argument, tls_arguments
from celery_redis_plus.errors import InvalidAddress

if TYPE_CHECKING:
    from redis.credentials import CredentialProvider

#: What `sentinel_kwargs` may hold besides `ssl_*`: the arguments of redis-py that mean something for one question.
_KWARGS = frozenset({"username", "password", "credential_provider", "ssl", "socket_timeout", "socket_connect_timeout"})


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The Sentinels that are asked for a master, and the credentials for them. Printing it shows no secrets.

    `tls` holds redis-py's `ssl_*` arguments, or None for connections without TLS. `timeout_s` bounds each answer, in seconds;
    None: the connection's own time.
    """

    hosts: tuple[tuple[str, int], ...]
    master_name: str = ""
    min_other_sentinels: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    credential_provider: CredentialProvider | None = field(default=None, repr=False, hash=False)
    timeout_s: float | None = None

    @property
    def servers(self) -> str:
        """The Sentinels as `host:port`, with commas between them."""
        return servers_text(self.hosts)

    def completed(
        self, master_name: str | None, sentinel_kwargs: Mapping[str, Any] | None, min_other_sentinels: int
    ) -> Sentinels:
        """Return these with what the options of the same names add; what the URL says goes first.

        Raises:
            InvalidAddress: nothing names the master, or `sentinel_kwargs` has names that redis-py does not know.
        """
        given = dict(sentinel_kwargs or {})
        unknown = sorted(name for name in given if name not in _KWARGS and not is_tls_argument(name))
        if unknown:
            raise InvalidAddress(
                f"sentinel_kwargs: unknown name {', '.join(map(repr, unknown))}; allowed: {', '.join(sorted(_KWARGS))}, ssl_*"
            )
        tls = {name: value for name, value in given.items() if is_tls_argument(name)}
        provider = resolve_credential_provider(given.get("credential_provider"))
        if provider is None and not (self.username or self.password):
            username, password = given.get("username"), given.get("password")
        else:
            username, password = (self.username, self.password) if provider is None else (None, None)
        wants_tls = given["ssl"] if "ssl" in given else bool(tls) or self.tls is not None
        completed = replace(
            self,
            master_name=self.master_name or master_name or "",
            min_other_sentinels=self.min_other_sentinels or min_other_sentinels,
            username=username or None,
            password=password or None,
            credential_provider=provider or self.credential_provider,
            # Its own arguments, or else those of the master.
            tls=(tls_arguments(tls or self.tls or True)) if wants_tls else None,
            timeout_s=given.get("socket_connect_timeout") or given.get("socket_timeout") or self.timeout_s,
        )
        if not completed.master_name:
            raise InvalidAddress(
                f"Sentinels {self.servers}: the name of the master is missing. Give the name that `sentinel monitor` has in "
                f"sentinel.conf as the option master_name, or in the URL: {EXAMPLES[SENTINEL_SCHEME]}"
            )
        return completed
