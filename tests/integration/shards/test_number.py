"""The number of shards: the first shard tells it, and no process with another one takes messages."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.shard_layout import shard_prefixes
from celery_redis_plus.errors import OptionError, ShardUnreachable
from celery_redis_plus.shards import shard_state
from tests.integration.shards.conftest import SHARDS, named, refuse_shard
from tests.support.inbox import Inbox, declare, publish

#: Its second shard has another prefix than that of three shards.
OTHER = 6


@pytest.fixture
def broker(connect_shards):
    """A broker with three shards, of which the other processes of the test know nothing."""
    declare(connect_shards().channel(), *[named(shard) for shard in range(SHARDS)])
    shard_state.forget()


def test_another_number_is_refused_while_the_first_shard_is_down(broker, connect, connect_shards, redis_client, monkeypatch):
    with monkeypatch.context() as down:
        down.setattr(Connector, "open", refuse_shard(0))
        with pytest.raises(ShardUnreachable, match=f"shard 0 of {OTHER} .* is unreachable"):
            connect(shards=OTHER, socket_connect_timeout=0.5)
    own = shard_prefixes("", OTHER)[1]
    assert not [key for key in redis_client.keys(f"*{own}*") if own.encode() in key]
    with pytest.raises(OptionError, match=f"allowed: {SHARDS}"):
        publish(connect(shards=OTHER).channel(), named(1, shards=OTHER), "lost", retry=False)


def test_shards_that_are_in_use_work_while_the_first_one_is_down(broker, connect_shards, monkeypatch):
    monkeypatch.setattr(Connector, "open", refuse_shard(0))
    channel = connect_shards().channel()
    publish(channel, named(1), "works")
    assert Inbox(channel, kombu.Queue(named(1), no_declare=True)).drain(1) == ["works"]


def test_an_empty_broker_is_used_as_soon_as_the_first_shard_answers(connect_shards, monkeypatch):
    with monkeypatch.context() as down:
        down.setattr(Connector, "open", refuse_shard(0))
        with pytest.raises(ShardUnreachable, match=f"shard 0 of {SHARDS} .* is unreachable"):
            connect_shards(socket_connect_timeout=0.5)
    connection = connect_shards(socket_connect_timeout=10)
    declare(connection.channel(), named(1))
    publish(connection.channel(), named(1), "first")
    assert Inbox(connection.channel(), named(1)).drain(1) == ["first"]
