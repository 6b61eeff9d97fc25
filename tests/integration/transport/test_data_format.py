"""The version of the data format is written, and each process checks it before it writes anything else."""

import pytest

from celery_redis_plus import keys
from celery_redis_plus.broker.exchanges import declared_topology
from celery_redis_plus.errors import OtherDataFormat
from tests.support.inbox import declare, publish


def test_the_version_of_the_format_is_written(channel, redis_client):
    declare(channel, "q")
    assert redis_client.get("database_id").startswith(b"%d." % keys.FORMAT_VERSION)


@pytest.mark.parametrize("found", [2, 17])
def test_data_of_another_format_is_refused_and_both_versions_are_named(connect, redis_client, found):
    redis_client.set("database_id", f"{found}.0123456789abcdef")
    with pytest.raises(OtherDataFormat, match=rf"format version {found}, .* knows format version {keys.FORMAT_VERSION}\."):
        declare(connect().channel(), "q")
    assert redis_client.keys() == [b"database_id"]


def test_a_later_version_refuses_the_data_of_this_one(connect, redis_client, monkeypatch):
    redis_client.set("database_id", "1.0123456789abcdef")
    monkeypatch.setattr(declared_topology, "FORMAT_VERSION", 2)
    with pytest.raises(OtherDataFormat, match=r"has format version 1, .* knows format version 2"):
        declare(connect().channel(), "q")


def test_a_mark_without_a_version_is_of_the_first_format(connect, redis_client):
    redis_client.set("database_id", "0123456789abcdef")
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", "x")
    assert redis_client.zcard("queue:{q}") == 1
