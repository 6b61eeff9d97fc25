"""What an INFO reply says of a server: taken, refused, or warned about once."""

from __future__ import annotations

import logging

import pytest

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.server_check import examine, parse_info
from celery_redis_plus.errors import ReadOnlyReplica, ServerTooOld

ADDRESS = Address(host="broker.example", password="s3cret")
GOOD = {"redis_version": "7.0.15", "role": "master", "maxmemory": "0", "maxmemory_policy": "noeviction"}


def test_an_info_reply_is_taken_apart():
    lines = [
        "# Server",
        "redis_version:7.2.4",
        "valkey_version:9.1.2",
        "executable:/a:b/c",
        "",
        "# Memory",
        "maxmemory:0",
    ]
    reply = "\r\n".join(lines).encode()
    assert parse_info(reply) == {
        "redis_version": "7.2.4",
        "valkey_version": "9.1.2",
        "executable": "/a:b/c",
        "maxmemory": "0",
    }


@pytest.mark.parametrize("version", ["7.0.0", "7.2.4", "8.6.1", "10.0.0", "7.4.0-rc1", "255.255.255", "", "unknown"])
def test_a_version_from_7_0_on_or_an_unknown_one_is_taken(version, caplog):
    examine({**GOOD, "redis_version": version}, ADDRESS)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("version", ["6.2.14", "6.0.16", "5.0.7", "2.8.4"])
def test_an_older_version_is_refused(version):
    with pytest.raises(ServerTooOld, match=rf"broker\.example.*version {version}.*Redis 7\.0 or Valkey 7\.2"):
        examine({**GOOD, "redis_version": version}, ADDRESS)


def test_a_read_only_replica_is_refused_with_its_primary():
    info = {**GOOD, "role": "slave", "slave_read_only": "1", "master_host": "10.0.0.1", "master_port": "6379"}
    with pytest.raises(ReadOnlyReplica, match=r"replica of 10\.0\.0\.1:6379"):
        examine(info, ADDRESS)


def test_a_writable_replica_is_warned_about(caplog):
    examine({**GOOD, "role": "slave", "slave_read_only": "0"}, ADDRESS)
    assert "LOST" in caplog.text


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("allkeys-lru", "WILL DELETE WAITING MESSAGES"),
        ("allkeys-random", "WILL DELETE WAITING MESSAGES"),
        ("volatile-ttl", "transient queues"),
    ],
)
def test_an_eviction_policy_that_can_take_our_keys_is_warned_about(policy, words, caplog):
    examine({**GOOD, "maxmemory": "1000000", "maxmemory_policy": policy}, ADDRESS)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert words in caplog.text
    assert policy in caplog.text
    assert "CONFIG SET maxmemory-policy noeviction" in caplog.text


@pytest.mark.parametrize(("maxmemory", "policy"), [("1000000", "noeviction"), ("0", "allkeys-lru")])
def test_without_eviction_nothing_is_said(maxmemory, policy, caplog):
    examine({**GOOD, "maxmemory": maxmemory, "maxmemory_policy": policy}, ADDRESS)
    assert not caplog.records
