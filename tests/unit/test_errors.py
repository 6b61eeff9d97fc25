"""Errors: the families on which Celery decides, and the translation of redis-py's errors."""

from __future__ import annotations

import inspect
import pickle
import socket
import ssl

import pytest
import redis.exceptions as redis_errors

from celery_redis_plus import errors
from celery_redis_plus.connection.address import Address
from celery_redis_plus.error_translation import translate

ADDRESS = Address(host="broker.example", db=3, username="app", password="s3cret")

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, errors.CeleryRedisPlusError) and found.__module__ == errors.__name__
]

# The text of an error reply, as the server sends it, and what it becomes.
REPLIES = [
    ("WRONGTYPE Operation against a key holding the wrong kind of value", errors.WrongKeyType),
    (
        "WRONGTYPE Operation against a key holding the wrong kind of value script: 1f, on @user_script:3.",
        errors.WrongKeyType,
    ),
    ("OOM command not allowed when used memory > 'maxmemory'.", errors.ServerOutOfMemory),
    ("NOPERM User app has no permissions to run the 'zadd' command", errors.NoPermission),
    ("NOAUTH Authentication required.", errors.AuthenticationFailed),
    ("WRONGPASS invalid username-password pair or user is disabled.", errors.AuthenticationFailed),
    ("ERR invalid password", errors.AuthenticationFailed),
    ("READONLY You can't write against a read only replica.", errors.ReadOnlyReplica),
    ("LOADING Redis is loading the dataset in memory", errors.ServerLoading),
    (
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        errors.ReadOnlyReplica,
    ),
    ("ERR max number of clients reached", errors.ServerUnreachable),
    (
        "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.",
        errors.ServerUnavailable,
    ),
    ("NOREPLICAS Not enough good replicas to write.", errors.ServerUnavailable),
    (
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        errors.ServerUnavailable,
    ),
    ("CLUSTERDOWN The cluster is down", errors.SlotUnavailable),
    ("TRYAGAIN Multiple keys request during rehashing of slot", errors.SlotUnavailable),
    ("MOVED 3999 127.0.0.1:6381", errors.ClusterRedirected),
    ("ASK 3999 127.0.0.1:6381", errors.ClusterRedirected),
    ("CROSSSLOT Keys in request don't hash to the same slot", errors.ClusterRedirected),
    ("ERR DB index is out of range", errors.InvalidAddress),
]

RETRIED = (redis_errors.ConnectionError, redis_errors.TimeoutError)


def parsed(reply):
    """Return redis-py's error for an error reply."""
    from redis.connection import DefaultParser

    return DefaultParser.parse_error(reply)


@pytest.mark.parametrize(("reply", "ours"), REPLIES)
def test_an_error_reply_becomes_ours_and_stays_catchable_as_redis_pys(reply, ours):
    raw = parsed(reply)
    error = translate(raw, ADDRESS)
    assert type(error) is ours
    assert error.__cause__ is raw
    assert "redisplus://broker.example:6379/3" in str(error)
    assert "What to do: " in str(error)
    # Celery puts a full stop behind it.
    assert not str(error).endswith(".")
    if ours not in (errors.ClusterRedirected, errors.InvalidAddress, errors.ServerUnavailable, errors.SlotUnavailable):
        # kombu's test-suite, and users' code, catch redis-py's own classes.
        kept = [kind for kind in type(raw).__mro__ if kind.__module__ == redis_errors.__name__]
        assert isinstance(error, kept[0] if kept[0] is not redis_errors.MasterDownError else redis_errors.ReadOnlyError)


@pytest.mark.parametrize(
    ("raw", "ours"),
    [
        (redis_errors.ConnectionError("Connection closed by server."), errors.ServerUnreachable),
        (redis_errors.TimeoutError("Timeout reading from socket"), errors.ServerTimeout),
        (redis_errors.InvalidResponse("Protocol Error: b'HTTP/1.1 400'"), errors.NotRedis),
        (TimeoutError("timed out"), errors.ServerTimeout),
        (socket.gaierror(-2, "Name or service not known"), errors.ServerUnreachable),
        (ConnectionResetError(104, "Connection reset by peer"), errors.ServerUnreachable),
        (BrokenPipeError(32, "Broken pipe"), errors.ServerUnreachable),
        (ssl.SSLError(1, "wrong version number"), errors.TlsFailed),
    ],
)
def test_an_error_of_the_connection_becomes_one_that_celery_retries(raw, ours):
    error = translate(raw, ADDRESS)
    assert type(error) is ours
    assert isinstance(error, RETRIED)


def test_what_openssl_said_is_recognised_inside_redis_pys_connection_error():
    try:
        try:
            raise ssl.SSLCertVerificationError(1, "self-signed certificate")
        except OSError as exc:
            raise redis_errors.ConnectionError(f"Error 1 connecting. {exc}")  # noqa: B904 - as redis-py does
    except redis_errors.ConnectionError as exc:
        error = translate(exc, ADDRESS)
    assert type(error) is errors.TlsFailed
    assert "ssl_ca_certs" in str(error)


@pytest.mark.parametrize(
    "raw",
    [
        redis_errors.NoScriptError("No matching script."),
        redis_errors.ResponseError("NOTDECLARED queue"),
        redis_errors.DataError("Invalid input"),
        ValueError("something else"),
        errors.QueueNotFound("no queue 'x'"),
        errors.ServerTimeout("too late"),
    ],
)
def test_what_is_ours_or_unknown_comes_back_unchanged(raw):
    assert translate(raw, ADDRESS) is raw


def test_no_secret_is_printed_although_the_server_echoes_it():
    raw = redis_errors.ResponseError("BUSY unknown command 'AUTH', with args beginning with: 'app' 's3cret'")
    error = translate(raw, ADDRESS)
    assert "s3cret" not in f"{error} {error!r} {error.__cause__} {error.__cause__!r}"
    assert "***" in str(error)


def test_max_clients_gets_the_remedy_that_helps():
    assert "maxclients" in str(translate(parsed("ERR max number of clients reached"), ADDRESS))


def test_on_these_celery_connects_again():
    for kind in (
        errors.ServerUnreachable,
        errors.TlsFailed,
        errors.NotRedis,
        errors.ServerTimeout,
        errors.ServerLoading,
        errors.ServerUnavailable,
        errors.ReadOnlyReplica,
        errors.AuthenticationFailed,
    ):
        assert issubclass(kind, RETRIED), kind


def test_on_these_celery_does_not_connect_again():
    retried = (*RETRIED, OSError, KeyError)
    for kind in CLASSES:
        family = errors.InvalidArgument, errors.BrokerError
        if issubclass(kind, family) or kind in (
            errors.NoPermission,
            errors.ServerTooOld,
            errors.ServerOutOfMemory,
            errors.WrongKeyType,
            errors.ClusterRedirected,
        ):
            assert not issubclass(kind, retried), kind


def test_every_class_tells_the_user_what_happened_and_what_to_do():
    """In a sentence each."""
    texts = {kind: (kind.__doc__ or "").rstrip() for kind in CLASSES}
    assert [kind for kind, text in texts.items() if not text.endswith(".") or len(text.split(".")) <= 2] == []


def test_every_error_survives_pickling_between_processes():
    again = {kind: pickle.loads(pickle.dumps(kind("what happened"))) for kind in CLASSES}
    assert [kind for kind, error in again.items() if (type(error), str(error)) != (kind, "what happened")] == []


def test_every_error_prints_its_message_in_a_log():
    assert [kind for kind in CLASSES if repr(kind("what happened")) != f"{kind.__name__}('what happened')"] == []


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.QueueNotFound, 404),
        (errors.PreconditionFailed, 406),
        (errors.Unroutable, 312),
    ],
)
def test_broker_errors_have_amqps_reply_code(kind, code):
    assert kind("x").reply_code == code
