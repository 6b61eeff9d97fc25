"""Queues that vanish: auto-delete, exclusive, `x-expires`; whole, with messages and bindings, and not while they are used."""

from __future__ import annotations

import time

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.registry import Consumer, Consumers
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.janitor import Janitor
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

#: What stays for good: the list of queues (with the tombstone), the counter of queue ids, exchanges.
#: The last one counts what nobody takes.
LASTING = {b"queues", b"queue_ids", b"exchanges", b"database_id", b"meta:{celery_redis_plus.undelivered}"}


def janitor(channel):
    session = channel.session
    queues = Queues(session.commands, session.keys, transient_ttl_s=300)
    return Janitor(queues, Bindings(session.commands, session.keys), ConsumedQueues())


def left_over(redis_client):
    """The keys that outlive every queue; a producer's record expires by itself."""
    return {key for key in redis_client.keys("*") if redis_client.pttl(key) == -1} - LASTING


def cleared(channel, redis_client):
    """Let a janitor look for vanished queues; return whether nothing of `q` is left but what its publishers remember."""
    janitor(channel).clear()
    return not [key for key in redis_client.keys("*{q}*") if not key.startswith(b"producer:")]


def expiring(name="q", ms=300, **options):
    return kombu.Queue(name, expires=ms / 1000, durable=False, **options)


@pytest.mark.parametrize("consumes", [True, False])
def test_a_janitor_leaves_what_its_own_process_consumes(consumes, channel, redis_client):
    """Its record may have expired while the process stood still, which declares it again."""
    declare(channel, "q", arguments={"x-expires": 60_000})
    publish(channel, "q", "waits")
    redis_client.delete("meta:{q}")
    redis_client.zadd("queues", {"q": 1})
    consumed, session = ConsumedQueues(), channel.session
    if consumes:
        consumed.add("q", "me.1", 60_000)
    Janitor(session.queues, Bindings(session.commands, session.keys), consumed).clear()
    assert redis_client.zcard("queue:{q}") == consumes


def test_a_tombstone_stands_for_a_day(channel, redis_client):
    now_ms = redis_client.time()[0] * 1000
    redis_client.zadd("queues", {"of today": 80_000_000 - now_ms, "of yesterday": 90_000_000 - now_ms})
    channel.session.queues.registry.remember(["q"])
    assert set(redis_client.zrangebyscore("queues", "-inf", -1)) == {b"of today", b"q"}


def test_an_unused_queue_vanishes_with_its_messages(channel, redis_client):
    expiring()(channel).declare()
    publish(channel, "q", "ready", "x" * 1_100_000)
    publish(channel, "q", "later", headers={"x-delay": 60_000})
    assert redis_client.keys("message:*")
    wait_until(lambda: not redis_client.exists("meta:{q}"))
    wait_until(lambda: cleared(channel, redis_client))
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("q", passive=True)


def test_a_reply_to_a_queue_that_has_vanished_is_not_stored_and_makes_no_key(connect, redis_client):
    requester, replier = connect().channel(), connect().channel()
    expiring("replies")(requester).declare()
    wait_until(lambda: not redis_client.exists("meta:{replies}"))
    publish(replier, "replies", "too late")
    with pytest.raises(ChannelError, match="no queue takes"):
        publish(replier, "replies", "too late", mandatory=True)
    janitor(replier).clear()
    publish(replier, "replies", "still too late")
    assert redis_client.keys("*{replies}*") == []
    assert left_over(redis_client) == set()


def test_a_vanished_queue_can_be_declared_again(channel, redis_client):
    expiring()(channel).declare()
    wait_until(lambda: not redis_client.exists("meta:{q}"))
    janitor(channel).clear()
    declare(channel, "q")
    publish(channel, "q", "hello")
    assert Inbox(channel, "q").drain(1) == ["hello"]
    assert redis_client.pttl("meta:{q}") == -1


def test_the_janitor_clears_bindings_of_vanished_queues_away(channel, redis_client):
    exchange = kombu.Exchange("e", "topic", durable=True)
    expiring("gone", exchange=exchange, routing_key="k")(channel).declare()
    kombu.Queue("stays", exchange, routing_key="k", durable=True)(channel).declare()
    wait_until(lambda: not redis_client.exists("meta:{gone}"))
    # The list tells when a queue may be gone, on the server's clock.
    wait_until(lambda: janitor(channel).clear() or set(channel.list_bindings()) == {("stays", "e", "k")})
    kombu.Producer(channel, exchange, routing_key="k").publish("x")
    assert Inbox(channel, "stays").drain(1) == ["x"]
    assert redis_client.keys("*gone*") == []


def test_a_publisher_with_a_cached_binding_does_not_revive_a_vanished_queue(connect, redis_client):
    publisher, other = connect().channel(), connect().channel()
    exchange = kombu.Exchange("e", "direct", durable=True)
    expiring(exchange=exchange, routing_key="k")(other).declare()
    producer = kombu.Producer(publisher, exchange, routing_key="k")
    producer.publish("stored")
    wait_until(lambda: not redis_client.exists("meta:{q}"))
    producer.publish("kept elsewhere")
    assert redis_client.keys("meta:*") == [b"meta:{celery_redis_plus.undelivered}"]
    wait_until(lambda: cleared(other, redis_client))


def test_a_slow_consumer_keeps_its_expiring_queue_and_what_waits_in_it(connect, redis_client):
    channel = connect().channel()
    queue = expiring(ms=600)
    inbox = Inbox(channel, queue, prefetch=1, ack=False)
    publish(channel, "q", *range(5))
    publish(channel, "q", "later", headers={"x-delay": 1500})
    inbox.drain(1)
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        assert redis_client.exists("meta:{q}")
        inbox.pump(0.1)
    assert inbox.bodies == [0]
    inbox.ack = True
    inbox.messages[0].ack()
    assert inbox.drain(6) == [0, 1, 2, 3, 4, "later"]


def test_a_consumer_that_did_not_declare_the_queue_keeps_it_alive_all_the_same(connect, redis_client):
    expiring(ms=600)(connect().channel()).declare()
    connection = connect()
    channel = connection.channel()
    received = []
    channel.basic_consume("q", callback=received.append, no_ack=True)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        try:
            connection.drain_events(timeout=0.1)
        except TimeoutError:
            assert redis_client.exists("meta:{q}")
    publish(channel, "q", "still there")
    connection.drain_events(timeout=5)
    assert received[0].payload == "still there"


def test_a_queue_has_its_life_from_when_its_last_consumer_leaves(connect, redis_client):
    first, second = connect().channel(), connect().channel()
    inboxes = [Inbox(channel, expiring(ms=600)) for channel in (first, second)]
    wait_until(lambda: redis_client.pttl("meta:{q}") > 60_000)
    inboxes[0].cancel()
    assert redis_client.pttl("meta:{q}") > 50_000
    inboxes[1].cancel()
    assert 0 < redis_client.pttl("meta:{q}") <= 600
    wait_until(lambda: not redis_client.exists("meta:{q}"))


def test_a_declaration_shortens_no_life_of_a_queue_that_is_consumed(connect, redis_client):
    inbox = Inbox(connect().channel(), expiring(ms=600))
    wait_until(lambda: redis_client.pttl("meta:{q}") > 50_000)
    expiring(ms=600)(connect().channel()).declare()
    assert redis_client.pttl("meta:{q}") > 50_000
    inbox.cancel()
    assert redis_client.pttl("meta:{q}") <= 600


def test_a_reader_of_single_messages_shortens_no_life_of_a_queue_that_is_consumed(connect, redis_client):
    inbox = Inbox(connect().channel(), expiring(ms=600))
    wait_until(lambda: redis_client.pttl("meta:{q}") > 50_000)
    reader = connect().channel()
    reader.basic_get("q")
    assert reader.session.queues.touch("q")
    assert redis_client.pttl("meta:{q}") > 50_000
    inbox.cancel()


def test_an_auto_delete_queue_goes_with_its_last_consumer(connect, redis_client):
    queue = kombu.Queue("q", kombu.Exchange("e", durable=True), routing_key="k", auto_delete=True)
    first, second = connect(), connect()
    one, two = Inbox(first.channel(), queue), Inbox(second.channel(), queue)
    one.cancel()
    assert redis_client.exists("meta:{q}")
    publish(first.default_channel, "q", "for the other")
    assert two.drain(1) == ["for the other"]
    publish(first.default_channel, "q", "for nobody", headers={"x-delay": 60_000})
    second.close()
    assert redis_client.keys("*{q}*") == [] or left_over(redis_client) == set()
    assert redis_client.keys("message:*") == []
    assert list(first.default_channel.list_bindings()) == []


def test_an_auto_delete_queue_whose_consumer_died_goes_after_the_option_transient_queue_ttl(connect, redis_client):
    channel = connect(transient_queue_ttl=1).channel()
    kombu.Queue("q", auto_delete=True)(channel).declare()
    publish(channel, "q", "never read")
    assert 0 < redis_client.pttl("meta:{q}") <= 1000
    wait_until(lambda: not redis_client.exists("meta:{q}"))
    wait_until(lambda: cleared(channel, redis_client))


def test_what_a_transient_queue_leaves_behind_expires_or_is_cleared(connection, channel, redis_client):
    """Claims and requeues make keys, too."""
    queue = expiring(ms=1000)
    queue(channel).declare()
    publish(channel, "q", 1, 2, 3)
    channel.basic_get("q").requeue()
    channel.basic_get("q")
    channel.close()
    wait_until(lambda: not redis_client.exists("meta:{q}"))
    other = connection.channel()
    wait_until(lambda: janitor(other).clear() or not left_over(redis_client))
    assert redis_client.keys("message:*") == []


def test_rejected_messages_of_a_transient_queue_are_not_kept(channel, redis_client):
    expiring(ms=5000)(channel).declare()
    publish(channel, "q", "bad")
    channel.basic_get("q").reject()
    wait_until(lambda: redis_client.hget("meta:{q}", "discarded") == b"1")
    assert redis_client.keys("message:*") == []
    assert redis_client.keys("dead:*") == []


def test_a_queue_that_comes_back_while_a_janitor_clears_keeps_its_messages_and_bindings(connect, redis_client, monkeypatch):
    owner, cleaner = connect().channel(), connect().channel()
    exchange = kombu.Exchange("e", "direct", durable=True)
    queue = expiring(exchange=exchange, routing_key="k", ms=200)
    queue(owner).declare()
    wait_until(lambda: not redis_client.exists("meta:{q}"))
    queues, bindings = Queues(cleaner.session.commands, cleaner.session.keys, transient_ttl_s=300), cleaner.session.bindings
    wait_until(lambda: queues.registry.overdue() == ["q"])
    unbind_queues = bindings.unbind_queues

    def come_back(names):
        kombu.Queue("q", exchange, routing_key="k", expires=60)(owner).declare()
        kombu.Producer(owner, exchange, routing_key="k").publish("kept")
        return unbind_queues(names)

    monkeypatch.setattr(bindings, "unbind_queues", come_back)
    Janitor(queues, bindings, ConsumedQueues()).clear()
    kombu.Producer(connect().channel(), exchange, routing_key="k").publish("kept, too")
    assert [owner.basic_get("q", no_ack=True).payload for _ in range(2)] == ["kept", "kept, too"]


def seen(consumers, queue):
    """Look for a consumer of the queue, whose record is to live for 100 s."""
    [standing] = consumers.check_listed([Consumer("s.1", queue, "t")], lambda _: 100_000)
    return standing.queue


@pytest.fixture
def consumers(channel):
    return Consumers(channel.session.commands, channel.session.keys)


def test_the_look_at_its_consumers_keeps_a_transient_queue_to_which_nothing_was_published(channel, consumers, redis_client):
    expiring(ms=1_000)(channel).declare()
    consumers.join(Consumer("s.1", "q", "t"))
    found = seen(consumers, "q")
    assert (found.unpublished, found.empty, found.record_id) == (True, True, redis_client.hget("meta:{q}", "id"))
    assert redis_client.pttl("meta:{q}") > 90_000
    publish(channel, "q", "a")
    found = seen(consumers, "q")
    assert (found.unpublished, found.empty) == (False, False)


def test_the_look_for_a_consumer_that_has_left_prolongs_no_life(channel, consumers, redis_client):
    expiring(ms=1_000)(channel).declare()
    assert not seen(consumers, "q").unpublished
    assert redis_client.pttl("meta:{q}") <= 1_000


def test_a_lasting_queue_gets_no_end_from_a_process_that_knew_a_transient_one(channel, consumers, redis_client):
    declare(channel, "q")
    consumers.join(Consumer("s.1", "q", "t"))
    assert not seen(consumers, "q").unpublished
    assert (seen(consumers, "gone").unpublished, seen(consumers, "gone").record_id) == (False, b"")
    assert redis_client.pttl("meta:{q}") == -1
    assert not redis_client.exists("meta:{gone}")


def replies(**options):
    """The queue of Celery's backend `rpc://`."""
    return kombu.Queue("replies", exchange="", durable=False, auto_delete=True, expires=60, **options)


def test_a_reply_queue_outlives_its_last_consumer_shortly(connect, redis_client):
    """Celery 5.6.3 cancels its consumer of results, closes, and connects again, once a second."""
    replier = connect().channel()
    for number in range(3):
        client = connect()
        inbox = Inbox(client.channel(), replies())
        if number:
            assert inbox.drain(1) == [f"between {number - 1}"]
        inbox.cancel()
        client.close()
        publish(replier, "replies", f"between {number}")
    wait_until(lambda: not redis_client.exists("meta:{replies}"), timeout_s=20)
    with pytest.raises(ChannelError, match="no queue takes"):
        publish(replier, "replies", "too late", mandatory=True)
    janitor(replier).clear()
    assert left_over(redis_client) == set()


def test_a_reply_queue_that_is_consumed_again_stays(connect, redis_client):
    client = connect().channel()
    Inbox(client, replies()).cancel()
    assert redis_client.pttl("meta:{replies}") <= 5000
    Inbox(client, replies())
    assert redis_client.pttl("meta:{replies}") > 50_000


def test_an_auto_delete_queue_that_an_exchange_feeds_goes_at_once(channel, redis_client):
    queue = kombu.Queue("fed", kombu.Exchange("news", type="topic"), routing_key="#", auto_delete=True, expires=60, durable=False)
    Inbox(channel, queue).cancel()
    assert not redis_client.exists("meta:{fed}")


def test_what_tells_the_order_of_consumers_has_the_ttl_of_a_queue_without_messages(connect, redis_client):
    """A worker that is killed leaves nothing of the queue of its events."""
    channel = connect().channel()
    queue = kombu.Queue("celeryev.x", queue_arguments={"x-expires": 60_000}, auto_delete=True)
    queue(channel).declare()
    redis_client.zadd("with_credit:{celeryev.x}", {"nobody": "-inf"})
    assert channel.session.queues.touch("celeryev.x")
    assert 60_000 < redis_client.pttl("with_credit:{celeryev.x}") <= 3_600_000


def test_a_record_that_was_lost_below_its_consumer_is_extended_as_before(connect, redis_client):
    """The list of consumers is still there: they do not join again."""
    # Its life is renewed at every third of this time.
    channel = connect(consumer_heartbeat_timeout=6).channel()
    inbox = Inbox(channel, expiring(ms=300))
    wait_until(lambda: redis_client.pttl("meta:{q}") > 5_000)
    redis_client.delete("meta:{q}")
    channel.session.service.tasks.topology_recovery.run_soon()
    channel.session.service.wake()
    wait_until(lambda: redis_client.pttl("meta:{q}") > 7_000)
    publish(channel, "q", "after")
    assert inbox.drain(1) == ["after"]


def test_a_declaration_renews_a_queue_whose_listed_consumer_is_dead(channel, redis_client):
    expiring(ms=60_000)(channel).declare()
    redis_client.zadd("consumers:{q}", {"dead": 1})
    redis_client.pexpire("meta:{q}", 500)
    expiring(ms=60_000)(channel).declare()
    assert redis_client.pttl("meta:{q}") > 50_000


def test_the_messages_of_a_queue_that_an_older_release_declared_live_as_long_as_those_of_others(channel, redis_client):
    expiring(ms=10_000)(channel).declare()
    publish(channel, "q", "a")
    redis_client.hset("meta:{q}", "ttl", 10_000)
    redis_client.hdel("meta:{q}", "expires")
    assert channel.session.queues.touch("q")
    assert redis_client.hmget("meta:{q}", "expires", "ttl") == [b"10000", b"3600000"]
    assert all(redis_client.pttl(key) > 3_000_000 for key in [b"queue:{q}", *redis_client.keys("message:*")])


def test_messages_are_touched_in_time_however_long_a_consumer_counts(connect, redis_client):
    channel = connect(consumer_heartbeat_timeout=86_400).channel()
    Inbox(channel, expiring(ms=5_000), prefetch=1, ack=False)
    wait_until(lambda: redis_client.pttl("meta:{q}") > 86_400_000)
    assert channel.session.service.tasks.transient_queues.next_run_at < clock.now_s() + 1_800
