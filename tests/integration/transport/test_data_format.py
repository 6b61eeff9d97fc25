"""The version of the data format is written, and each process checks it before it writes anything else."""

import pytest

from celery_redis_plus import keys
from celery_redis_plus.broker.exchanges import declared_topology
from celery_redis_plus.errors import OptionError, OtherDataFormat
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


def test_a_process_of_another_format_is_refused_when_it_connects(connect, redis_client):
    """Before it publishes, too: a publisher to the default exchange declares nothing."""
    redis_client.set("database_id", "2.0123456789abcdef")
    with pytest.raises(OtherDataFormat, match="has format version 2"):
        connect().connect()


def test_a_broker_with_shards_has_a_format_of_its_own_which_versions_without_shards_refuse():
    topology = declared_topology.DeclaredTopology(shards=4)
    topology.check_mark(b"2.0123456789abcdef.4")
    # As development versions have written it.
    topology.check_mark(b"1.0123456789abcdef.4")
    with pytest.raises(OptionError, match=r"shards=1 is not allowed for this broker; allowed: 4"):
        declared_topology.check_mark(b"2.0123456789abcdef.4", 1)
    with pytest.raises(OtherDataFormat, match=r"has format version 3, .* knows format version 2\."):
        topology.check_mark(b"3.0123456789abcdef.4")


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
