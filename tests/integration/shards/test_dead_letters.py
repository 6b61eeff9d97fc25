"""Dead messages whose dead-letter exchange leads to queues of other shards."""

from __future__ import annotations

import kombu
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.shards import dead_letters as shard_moves
from tests.integration.shards.conftest import SHARDS, named
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

SOURCE = named(0, "source")
GRAVES = [named(shard, "graves") for shard in range(SHARDS)]


def reject(connection, queue, count=1):
    inbox = Inbox(connection.channel(), kombu.Queue(queue, no_declare=True), ack=False)
    inbox.drain(count)
    for message in inbox.messages[:count]:
        message.reject()
    return inbox


@pytest.mark.parametrize("body", ["small", "x" * 1_500_000])
def test_a_dead_message_goes_on_to_queues_of_all_shards(connect_shards, redis_client, body):
    connection, channel = connect_shards(), connect_shards().channel()
    exchange = kombu.Exchange("dead", "direct")
    for queue in GRAVES:
        kombu.Queue(queue, exchange, "died")(channel).declare()
    arguments = {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "died"}
    declare(channel, SOURCE, arguments=arguments)
    publish(channel, SOURCE, body, headers={"mine": 1})
    reject(connection, SOURCE)
    wait_until(lambda: all(channel.queue_sizes(queue).ready == 1 for queue in GRAVES), 20)
    for queue in GRAVES:
        message = channel.basic_get(queue, no_ack=True)
        assert message.payload == body
        assert message.headers["mine"] == 1
        [death] = message.headers["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == (SOURCE, "rejected", 1)
        assert message.delivery_info["exchange"] == "dead"
    assert redis_client.hget(f"meta:{{{SOURCE}}}", "forwarded") == b"1"


@pytest.mark.sample(3)
@pytest.mark.parametrize("step", ["store_once", "remove_stored", "finish_move"])
@pytest.mark.parametrize("after", [False, True])
def test_a_move_that_dies_in_its_middle_arrives_once(connect_shards, redis_client, monkeypatch, step, after):
    """The call of each step fails once, before the server has it or after."""
    connection, channel = connect_shards(), connect_shards().channel()
    declare(channel, *GRAVES)
    declare(channel, SOURCE, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVES[1]})
    call, failed = CommandConnection.call, []

    def fail_once(self, script, keys, *arguments):
        if script.name != step or failed:
            return call(self, script, keys, *arguments)
        failed.append(script.name)
        if after:
            call(self, script, keys, *arguments)
        raise RedisConnectionError("killed")

    monkeypatch.setattr(CommandConnection, "call", fail_once)
    publish(channel, SOURCE, *range(3))
    inbox = reject(connection, SOURCE, 3)
    wait_until(lambda: failed and channel.queue_sizes(GRAVES[1]).ready == 3, 20)
    outbox = connection.transport.of_queue(SOURCE).session.keys.queue(SOURCE).dlx_outbox
    wait_until(lambda: not redis_client.zcard(outbox), 20)
    assert channel.queue_sizes(GRAVES[1]).ready == 3
    assert len(inbox.messages) == 3


def test_a_message_that_others_have_moved_is_not_stored_again(connect_shards, monkeypatch):
    connection, channel = connect_shards(), connect_shards().channel()
    declare(channel, *GRAVES)
    declare(channel, SOURCE, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVES[1]})
    letters, moves = [], []
    move = shard_moves.ShardMoves.move

    def twice(self, letter, *arguments):
        letters.append(letter)
        moves.append(move(self, letter, *arguments))
        again = move(self, letter, *arguments)
        assert again == shard_moves.ALREADY_GONE
        return moves[-1]

    monkeypatch.setattr(shard_moves.ShardMoves, "move", twice)
    publish(channel, SOURCE, "x")
    reject(connection, SOURCE)
    wait_until(lambda: moves == [1] and channel.queue_sizes(GRAVES[1]).ready == 1, 20)
