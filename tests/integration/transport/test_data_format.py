"""The version of the data format is written, and each process checks it before it writes anything else."""

import pytest

from celery_redis_plus.errors import OtherDataFormat
from tests.support.inbox import declare, publish

#: What this version writes: another number is a change for every user.
FORMAT_VERSION = 1


def test_the_version_of_the_format_is_written(channel, redis_client):
    declare(channel, "q")
    assert redis_client.get("database_id").startswith(b"%d." % FORMAT_VERSION)


@pytest.mark.parametrize("found", [2, 17])
def test_data_of_another_format_is_refused_and_both_versions_are_named(connect, redis_client, found):
    redis_client.set("database_id", f"{found}.0123456789abcdef")
    with pytest.raises(OtherDataFormat, match=rf"format version {found}, .* knows format version {FORMAT_VERSION}\."):
        declare(connect().channel(), "q")
    assert redis_client.keys() == [b"database_id"]


def test_a_process_of_another_format_is_refused_when_it_connects(connect, redis_client):
    """Before it publishes, too: a publisher to the default exchange declares nothing."""
    redis_client.set("database_id", "2.0123456789abcdef")
    with pytest.raises(OtherDataFormat, match="has format version 2"):
        connect().connect()


def test_a_mark_without_a_version_is_of_the_first_format(connect, redis_client):
    redis_client.set("database_id", "0123456789abcdef")
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", "x")
    assert redis_client.zcard("queue:{q}") == 1
