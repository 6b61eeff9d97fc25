"""Credential providers: the forms in which one is given, and what is asked of it."""

from __future__ import annotations

import pytest
from redis.auth.token import SimpleToken
from redis.credentials import CredentialProvider, StreamingCredentialProvider, UsernamePasswordCredentialProvider

from celery_redis_plus.connection import credentials
from celery_redis_plus.connection.credentials import credentials_of, resolve_credential_provider
from celery_redis_plus.connection.poll import wait_readable
from celery_redis_plus.connection.waker import Waker
from celery_redis_plus.errors import AuthenticationFailed, InvalidArgument


class Failing(CredentialProvider):
    def get_credentials(self):
        raise KeyError("s3cret")


class Streaming(StreamingCredentialProvider):
    def get_credentials(self):
        return ("first", "one")

    def on_next(self, callback):
        self.renew = callback

    def on_error(self, callback):
        self.fail = callback

    def is_streaming(self):
        return True


def make_provider():
    return UsernamePasswordCredentialProvider("app", "pw")


@pytest.mark.parametrize("given", [make_provider, f"{__name__}:make_provider", f"{__name__}.make_provider", Failing])
def test_a_callable_makes_one_provider_a_process(given):
    provider = resolve_credential_provider(given)
    assert isinstance(provider, CredentialProvider)
    assert resolve_credential_provider(given) is provider


def test_a_forked_child_makes_its_own_provider():
    """A provider's thread does not run in it."""
    provider = resolve_credential_provider(make_provider)
    credentials._process.forked()  # noqa: SLF001 - as the hook of a fork calls it
    assert resolve_credential_provider(make_provider) is not provider


def test_a_callable_that_makes_something_else_is_refused():
    with pytest.raises(InvalidArgument, match="a callable that makes one"):
        resolve_credential_provider(dict)


def test_the_newest_credentials_of_a_streaming_provider_are_used():
    provider = Streaming()
    known = credentials_of(provider)
    assert known.get_credentials() == ("first", "one")
    login, waker = known.login(), Waker()
    known.wake_on_renewal(waker)
    provider.renew(SimpleToken("two", -1, 0, {"oid": "second"}))
    assert known.is_outdated(login, None)
    assert wait_readable([waker.fileno()], 0)
    assert known.get_credentials() == ("second", "two")
    assert not known.is_outdated(known.login(), None)


@pytest.mark.parametrize("lose", [lambda known: known.forked(), lambda known: known._renewed(SimpleToken("old", 1, 0, {}))])  # noqa: SLF001
def test_a_token_that_nobody_renews_is_not_used(lose):
    known = credentials_of(provider := Streaming())
    provider.renew(SimpleToken("two", -1, 0, {"oid": "second"}))
    lose(known)
    assert known.get_credentials() == ("first", "one")


def test_all_connectors_share_a_provider(caplog):
    """It can tell one listener only."""
    provider = Streaming()
    known = credentials_of(provider)
    assert credentials_of(provider) is known
    provider.fail(ValueError("s3cret"))
    assert "Streaming could not renew its credentials: ValueError" in caplog.text
    assert "s3cret" not in caplog.text


def test_an_error_of_the_provider_shows_no_secret():
    with pytest.raises(AuthenticationFailed, match="Failing gave no credentials: it raised KeyError") as raised:
        credentials_of(Failing()).get_credentials()
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_credentials_grow_old(monkeypatch):
    known = credentials_of(make_provider())
    login = known.login()
    assert not known.is_outdated(login, 60)
    monkeypatch.setattr("celery_redis_plus.clock.now_s", lambda: login.at + 60)
    assert known.is_outdated(login, 60)
    assert not known.is_outdated(login, None)
