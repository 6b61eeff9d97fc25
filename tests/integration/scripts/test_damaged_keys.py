"""A key of another type, which somebody else wrote or a restore has left, harms its own message or queue alone."""

from __future__ import annotations

import re

import pytest
from redis.exceptions import ResponseError

from celery_redis_plus.broker.consumers.claims import MAX_CLAIMED_BYTES
from celery_redis_plus.broker.consumers.registry import Consumer
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from celery_redis_plus.scripts import script
from tests.integration.broker.conftest import make_broker


def sweep(broker, *queues):
    limits = SweepLimits(30, None, 5, 1000.0)
    sweeper = Sweeper(broker.commands, broker.keys, ConsumedQueues(), name="s", limits=limits, forward=lambda _: None)
    sweeper.watch(queues)
    sweeper.run()


def damage(client, place, number):
    tag = client.zrange(place, number, number)[0]
    client.delete(b"message:{q}:" + tag)
    client.set(b"message:{q}:" + tag, "foreign")
    return tag


def test_a_claim_sets_a_damaged_message_aside_and_takes_its_neighbours(redis_client, caplog):
    broker = make_broker(redis_client)
    broker.declare("q")
    broker.publish("q", *(b"%d" % number for number in range(10)))
    damage(redis_client, "queue:{q}", 4)
    assert broker.bodies("q") == [b"%d" % number for number in range(10) if number != 4]
    assert redis_client.zcard("queue:{q}") == 0
    assert redis_client.hget("meta:{q}", "damaged") == b"1"
    sweep(broker, "q")
    assert "1 message(s) of queue 'q' are set aside" in caplog.text
    broker.commands.close()


def test_heartbeats_and_settlements_of_its_neighbours_go_on(redis_client):
    broker = make_broker(redis_client)
    broker.declare("q")
    broker.publish("q", b"a", b"b", b"c")
    messages = broker.claim("q")
    tag = damage(redis_client, "messages_index:{q}", 1)
    of = broker.keys.queue("q")
    pairs = [value for message in messages for value in (message.tag, message.claim)]
    assert broker.commands.call(script("extend_leases"), [of.index, of.message, of.meta], 30_000, 3, *pairs) == [tag]
    broker.settle(Settlement.REJECT, *messages)
    assert redis_client.zcard("dead:{q}") == 2
    broker.commands.close()


def test_a_claim_that_cannot_write_the_index_leaves_all_messages_ready(redis_client, caplog):
    broker = make_broker(redis_client)
    broker.declare("q")
    broker.publish("q", b"a", b"b")
    redis_client.set("messages_index:{q}", "foreign")
    assert broker.claim("q") == []
    assert re.search(r"queue 'q' cannot be claimed from \(.*WRONGTYPE", caplog.text)
    redis_client.delete("messages_index:{q}")
    assert broker.bodies("q") == [b"a", b"b"]
    broker.commands.close()


@pytest.mark.parametrize("field", ["delivered", "ttl"])
def test_a_claim_goes_on_with_other_queues_where_one_record_is_damaged(redis_client, caplog, field):
    """What it has taken out of the damaged one is delivered as well: else nobody would have it."""
    broker = make_broker(redis_client)
    broker.declare("bad", "q")
    broker.publish("bad", b"1", b"2")
    broker.publish("q", b"3")
    redis_client.hset("meta:{bad}", field, "text")
    assert broker.bodies("bad", "q") == [b"1", b"2", b"3"]
    assert "cannot be claimed from" not in caplog.text
    assert redis_client.zcard("messages_index:{bad}") == 2
    assert redis_client.hget("meta:{bad}", "delivered") == b"2"
    broker.commands.close()


@pytest.mark.parametrize("kind", ["queue", "messages_index", "consumers"])
def test_a_claim_that_leaves_others_their_part_goes_on_beside_a_damaged_queue(redis_client, kind):
    broker = make_broker(redis_client)
    broker.declare("bad", "q")
    broker.publish("bad", b"1")
    broker.publish("q", b"2")
    for number in range(2):
        broker.consumers.join(Consumer(f"c.{number}", "bad", "tag"))
    redis_client.delete(f"{kind}:{{bad}}")
    redis_client.set(f"{kind}:{{bad}}", "foreign")
    batch = broker.claim_commands.claim(["bad", "q"], 10, share=True, held=[0, 0])
    assert [message.body for message in batch.messages] == [b"1"] * (kind == "consumers") + [b"2"]
    assert list(batch.failures) == ["bad"] * (kind != "consumers")
    broker.commands.close()


def test_what_a_damaged_queue_has_read_in_vain_does_not_count_for_others(redis_client):
    broker = make_broker(redis_client)
    broker.declare("bad", "q")
    broker.publish("bad", b"x" * MAX_CLAIMED_BYTES)
    broker.publish("q", b"2")
    redis_client.set("messages_index:{bad}", "foreign")
    assert broker.bodies("bad", "q") == [b"2"]
    broker.commands.close()


def test_each_queue_that_cannot_be_claimed_from_is_named(redis_client):
    broker = make_broker(redis_client)
    broker.declare("bad", "q", "worse")
    broker.publish("q", b"1", b"2")
    for queue in ("bad", "worse"):
        redis_client.set(f"queue:{{{queue}}}", "foreign")
    batch = broker.claim_commands.claim(["bad", "q", "worse"], 9, share=False)
    assert len(batch.messages) == 2
    assert {queue: why.partition(" ")[0] for queue, why in batch.failures.items()} == {"bad": "WRONGTYPE", "worse": "WRONGTYPE"}
    broker.commands.close()


def test_a_claim_leaves_a_queue_alone_whose_index_it_cannot_write_and_takes_from_others(redis_client, caplog):
    broker = make_broker(redis_client)
    broker.declare("first", "bad", "q")
    for queue in ("first", "bad", "q"):
        broker.publish(queue, queue.encode(), b"x")
    redis_client.set("messages_index:{bad}", "foreign")
    assert broker.bodies("first", "bad", "q") == [b"first", b"x", b"q", b"x"]
    assert re.search(r"queue 'bad' cannot be claimed from \(.*WRONGTYPE.* one of the keys .*messages_index:\{bad\}", caplog.text)
    assert redis_client.zcard("queue:{bad}") == 2
    broker.commands.close()


def test_a_queue_that_cannot_be_swept_does_not_keep_others_from_it(redis_client, caplog):
    broker = make_broker(redis_client)
    broker.declare("bad", "q")
    broker.publish("q", b"x", eta="+1")
    broker.publish("bad", b"x")
    redis_client.delete("meta:{bad}")
    redis_client.set("meta:{bad}", "foreign")
    redis_client.zadd("delayed:{q}", {redis_client.zrange("delayed:{q}", 0, 0)[0]: 1})
    sweep(broker, "bad", "q")
    assert redis_client.zcard("queue:{q}") == 1
    assert "queue 'bad' cannot be swept (WRONGTYPE" in caplog.text
    broker.commands.close()


def test_a_batch_that_cannot_be_stored_counts_as_not_published(redis_client):
    broker = make_broker(redis_client)
    broker.declare("q")
    broker.publish("q", b"before")
    redis_client.delete("wakeup:{q}")
    redis_client.set("wakeup:{q}", "foreign")
    queue = broker.keys.queue("q")
    keys = [queue.meta, queue.ready, queue.message, queue.wakeup, queue.producer + b"p"]
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        broker.commands.call(script("publish_batch"), keys, 2, 900_000, "", b"{}\nnew", 255, "", "", b"{}\nnew2", 255, "", "")
    assert redis_client.hget("meta:{q}", "published") == b"1"
    assert redis_client.zcard("queue:{q}") == len(redis_client.keys("message:*")) == 1
    broker.commands.close()


def test_an_error_is_noted_beside_a_damaged_message(redis_client):
    broker = make_broker(redis_client)
    broker.declare("q")
    broker.publish("q", b"1", b"2")
    messages = broker.claim("q")
    damage(redis_client, "messages_index:{q}", 0)
    triples = [value for message in messages for value in (message.tag, message.claim, "error")]
    assert broker.commands.call(script("record_error"), [broker.keys.queue("q").message], *triples) == 1
    broker.commands.close()


def test_an_entry_whose_tag_has_spaces_is_claimed_beside_its_neighbours(redis_client):
    broker = make_broker(redis_client)
    broker.declare("q")
    broker.publish("q", b"first", b"last")
    of = broker.keys.queue("q")
    redis_client.zadd(of.ready, {"not a tag": 2})
    redis_client.hset(of.message + b"not a tag", "payload", b"{}\nodd")
    messages = broker.claim("q", credit=10)
    assert {message.body for message in messages} == {b"first", b"odd", b"last"}
    assert broker.ack("q", *(message.tag for message in messages)) == 3
    broker.commands.close()


@pytest.mark.parametrize("score", ["+inf", "-inf", 1e30, -5])
def test_a_score_that_no_message_gets_does_not_hold_up_a_look_at_the_queue(redis_client, score):
    broker = make_broker(redis_client)
    broker.declare("q")
    broker.publish("q", b"first")
    of = broker.keys.queue("q")
    redis_client.zadd(of.ready, {"odd": score})
    places = [getattr(of, kind) for kind in ("meta", "ready", "delayed", "index", "message", "dlx_outbox", "dead", "consumers")]
    assert broker.commands.call(script("queue_overview"), places)[1] == 2
    broker.commands.close()


@pytest.mark.parametrize("kind", ["wakeup", "with_credit"])
def test_what_a_claim_by_rules_has_taken_is_delivered_where_it_can_wake_nobody(redis_client, kind):
    """Else nobody would have it until its lease ends, which counts as a failure."""
    broker = make_broker(redis_client)
    broker.declare("q", arguments={"x-max-unacked": 5})
    broker.publish("q", b"1", b"2")
    redis_client.delete(f"{kind}:{{q}}")
    redis_client.set(f"{kind}:{{q}}", "foreign")
    reply = broker.claim_commands.claim_restricted("q", 1, "", credit=1, activations=b"")
    assert [message.body for message in reply.messages] == [b"1"]
    assert reply.wait_s == 1
    broker.commands.close()
