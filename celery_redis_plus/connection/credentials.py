"""Credential providers: how one can be given, what it gives, and which connections have to log in again with that.

A server that takes tokens for a limited time closes a connection whose token has expired, unless it sends AUTH with a newer one.
"""

from __future__ import annotations

import importlib
import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.credentials import CredentialProvider, StreamingCredentialProvider

from celery_redis_plus import clock
from celery_redis_plus.connection import forks
from celery_redis_plus.errors import AuthenticationFailed, InvalidArgument

if TYPE_CHECKING:
    from celery_redis_plus.connection.waker import Waker

logger = logging.getLogger(__name__)

_ALLOWED = (
    "a redis.CredentialProvider, a callable that makes one, or the path of either: package.module:Name or package.module.Name"
)


def resolve_credential_provider(given: Any) -> CredentialProvider | None:
    """Return the provider for `given`: None, a `redis.CredentialProvider`, a callable that makes one, or the path of either.

    A callable, such as a class, is called once in each process, without arguments: a provider may run a thread of its own.

    Raises:
        InvalidArgument: the path leads nowhere, or there is no `redis.CredentialProvider` in the end.
    """
    if given is None or given == "":
        return None
    source = _load(given) if isinstance(given, str) else given
    provider = source
    if callable(source) and not isinstance(source, CredentialProvider):
        provider = _process.made(source)
    if not isinstance(provider, CredentialProvider):
        what = repr(given) if isinstance(given, str) else f"an object of {type(given).__name__}"
        raise InvalidArgument(f"credential_provider: {what} is not allowed; allowed: {_ALLOWED}")
    return provider


def _load(path: str) -> Any:
    module, _, name = path.rpartition(":" if ":" in path else ".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise InvalidArgument(f"credential_provider={path!r} cannot be imported ({exc}); allowed: {_ALLOWED}") from exc


class Login(NamedTuple):
    """With what a connection has logged in."""

    #: `Credentials.version` at that time.
    version: int
    #: On `clock`, in seconds.
    at: float


class Credentials(CredentialProvider):
    """What one provider gives, for all connections of this process; it is the provider that redis-py gets."""

    def __init__(self, provider: CredentialProvider) -> None:
        """Ask `provider`; where it streams (redis-py's `StreamingCredentialProvider`), be told when it has new credentials."""
        self._provider = provider
        #: How often the provider has told of new credentials.
        self.version = 0
        self._token: Any = None
        self._lock = forks.lock_of(self)
        self._wakers: weakref.WeakSet[Waker] = weakref.WeakSet()
        if isinstance(provider, StreamingCredentialProvider):
            provider.on_next(self._renewed)
            provider.on_error(self._failed)
        forks.on_fork_in_child(self)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, or user name and password.

        Raises:
            AuthenticationFailed: the provider gives none. Its own error is not repeated, because it may quote a secret.
        """
        token = self._token
        try:
            if token is None or token.is_expired():
                return self._provider.get_credentials()
            user = token.try_get("oid")
            return (user, token.get_value()) if user else (token.get_value(),)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            raise AuthenticationFailed(
                f"credential_provider {_name(self._provider)} gave no credentials: it raised {_name(error)}"
            ) from None

    def login(self) -> Login:
        """Return what a connection notes that logs in now."""
        return Login(self.version, clock.now_s())

    def is_outdated(self, login: Login, max_age_s: float | None) -> bool:
        """Return whether a connection has to log in again: there are newer credentials, or its own are older than `max_age_s`."""
        return login.version != self.version or (max_age_s is not None and clock.now_s() - login.at >= max_age_s)

    def wake_on_renewal(self, waker: Waker) -> None:
        """Wake a loop when there are new credentials: its connections wait perhaps for longer than the old ones last."""
        with self._lock:
            self._wakers.add(waker)

    def forked(self) -> None:
        """Forget the token, in a child: the thread that renews it is the parent's."""
        self._token = None

    def _renewed(self, token: Any) -> None:
        """Take new credentials, in the provider's thread."""
        self._token = token
        self.version += 1
        with self._lock:
            wakers = list(self._wakers)
        for waker in wakers:
            waker.wake()

    def _failed(self, error: Exception) -> None:
        """Log that the provider could not renew them, in its thread. It tries again by itself."""
        logger.warning("credential_provider %s could not renew its credentials: %s", _name(self._provider), _name(error))


def _name(thing: object) -> str:
    return type(thing).__name__


class _Process:
    """The providers that were made in this process, and the credentials of all."""

    def __init__(self) -> None:
        self._made: dict[Callable[[], Any], Any] = {}
        self._credentials: weakref.WeakValueDictionary[int, Credentials] = weakref.WeakValueDictionary()
        forks.on_fork_in_child(self)

    def forked(self) -> None:
        """Make them anew, in a child: the parent's threads do not renew what they give."""
        self._made.clear()

    def made(self, make: Callable[[], Any]) -> Any:
        """Return what `make` makes, once a process."""
        if make not in self._made:
            self._made[make] = make()
        return self._made[make]

    def of(self, provider: CredentialProvider) -> Credentials:
        """Return the credentials of a provider, which can tell only one of them that there are new ones."""
        known = self._credentials.get(id(provider))
        if known is None:
            # It keeps the provider, and so its id, alive.
            known = self._credentials[id(provider)] = Credentials(provider)
        return known


_process = _Process()


def credentials_of(provider: CredentialProvider) -> Credentials:
    """Return what all connections of this process share of a provider."""
    return _process.of(provider)
