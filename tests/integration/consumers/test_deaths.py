"""Consumers that are killed: what they had alone passes on whenever the next one comes.

Celery's workers: `tests/chaos/test_only_consumer.py`.
"""

from __future__ import annotations

import signal
import time

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.keys import Keys
from tests.support.apps import JOURNAL_DB
from tests.support.clock import OFFSET_KEY, scripts_with_steps
from tests.support.consuming import consumers
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

SINGLE = {"x-single-active-consumer": True}
#: Consumers hear of a message, or never: polling does not help them within a test.
LIFE = {"connection_lost_grace": 1, "visibility_timeout": 300, "polling_interval": 600}
#: The promise is 2 s (`tests/chaos/test_only_consumer.py`); here the machine may be busy.
SERVED_S = 30


@pytest.fixture
def crew(broker_url, server, tmp_path):
    with server.client(JOURNAL_DB) as journal, consumers(broker_url, journal, tmp_path) as crew:
        yield crew


def heartbeats(client):
    """Return when the next heartbeat of each process is due, in ms."""
    return dict(client.zrange(Keys().processes[1], 0, -1, withscores=True))


def now_ms(client):
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000


def wait_until_overdue(client):
    """Return when each process has been without a connection for longer than the grace."""
    wait_until(lambda: all(due + 1500 < now_ms(client) for due in heartbeats(client).values()), SERVED_S)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("arguments", "first", "second"),
    [
        pytest.param(SINGLE, {}, {}, id="single active"),
        pytest.param({}, {"exclusive": True}, {"exclusive": True}, id="exclusive"),
        pytest.param({}, {"exclusive": True}, {}, id="exclusive, then any"),
        pytest.param({}, {"priority": 10}, {}, id="priority 10, then 0"),
    ],
)
def test_a_consumer_that_comes_after_the_only_one_was_killed_is_served(connect, crew, redis_client, arguments, first, second):
    channel = connect(**LIFE).channel()
    declare(channel, "q", arguments=arguments)
    crew.start("first", arguments=arguments, **first, **LIFE)
    crew.wait()
    publish(channel, "q", 1)
    wait_until(lambda: crew.count() == 1 and not redis_client.zcard("messages_index:{q}"), SERVED_S)
    crew.kill("first")
    wait_until_overdue(redis_client)
    publish(channel, "q", 2)
    crew.start("second", arguments=arguments, **second, **LIFE)
    crew.wait_to_join("second")
    wait_until(lambda: crew.count() == 2, SERVED_S)
    # And every one that comes while it waits.
    for number in range(3):
        publish(channel, "q", number)
        wait_until(lambda number=number: crew.count() == 3 + number, SERVED_S)
    assert crew.shares()["second"] == 4


def test_data_of_dead_consumers_whose_list_expired_heals(connect, redis_client):
    """As older versions left it."""
    connection = connect(polling_interval=600)
    channel = connection.channel()
    declare(channel, "single", arguments=SINGLE)
    declare(channel, "exclusive", "prioritised")
    redis_client.hset("meta:{single}", mapping={"active": "dead.1", "takeover": 1, "wakeup": "wakeup:{single}:dead.1"})
    redis_client.hset("meta:{exclusive}", mapping={"exclusive": "dead.1", "restricted": "now"})
    redis_client.zadd("with_credit:{exclusive}", {"": "-inf"})
    redis_client.hset("meta:{prioritised}", mapping={"prioritised": 3, "restricted": "now", "wakeup": "wakeup:{prioritised}:10"})
    redis_client.zadd("with_credit:{prioritised}", {"": "-inf", "dead.1": 10, "dead.2": 4, "dead.3": 0})
    inbox = Inbox(channel, kombu.Queue("single", durable=True, queue_arguments=SINGLE), "exclusive", "prioritised")
    for name in ("single", "exclusive", "prioritised"):
        publish(channel, name, name)
    assert sorted(inbox.drain(3, timeout_s=3)) == ["exclusive", "prioritised", "single"]
    assert redis_client.hmget("meta:{exclusive}", "restricted", "exclusive") == [None, None]
    assert redis_client.hmget("meta:{prioritised}", "restricted", "prioritised", "wakeup") == [None, None, None]
    assert not redis_client.exists("with_credit:{prioritised}")


def test_a_takeover_takes_only_what_the_dead_one_held(connect, crew, redis_client):
    channel = connect().channel()
    declare(channel, "q", arguments=SINGLE)
    options = {"arguments": SINGLE, "ack": False, **LIFE}
    publish(channel, "q", 1)
    crew.start("cancelled", **options)
    crew.wait()
    wait_until(lambda: crew.count() == 1, SERVED_S)
    crew.start("killed", **options)
    crew.wait()
    crew.signal("cancelled", signal.SIGUSR1)
    publish(channel, "q", 2)
    wait_until(lambda: crew.count() == 2, SERVED_S)
    crew.start("next", **options)
    crew.wait()
    crew.kill("killed")
    wait_until(lambda: crew.count() == 3, SERVED_S)
    assert crew.notes() == [("cancelled", "1", False), ("killed", "2", False), ("next", "2", True)]
    assert sorted(redis_client.hget(key, "claim") for key in redis_client.keys("message:{q}:*")) == [b"1", b"2"]


def test_what_several_dead_ones_held_comes_back_in_order(connect, crew, redis_client):
    channel = connect().channel()
    declare(channel, "q", arguments=SINGLE)
    options = {"arguments": SINGLE, "ack": False, "prefetch": 2, **LIFE}
    for name in ("first", "second", "third"):
        crew.start(name, **options)
        crew.wait()
    publish(channel, "q", 1, 2, 3)
    wait_until(lambda: crew.count() == 2, SERVED_S)
    crew.kill("first")
    wait_until(lambda: crew.count() == 4, SERVED_S)
    crew.kill("second")
    wait_until(lambda: crew.count() == 6, SERVED_S)
    assert [(name, body) for name, body, _ in crew.notes()] == [
        (name, body) for name in ("first", "second", "third") for body in ("1", "2")
    ]


@pytest.mark.not_on("cluster", "cluster-tls", reason="the clock of its scripts is a key of another slot")
def test_a_step_of_the_clock_takes_nothing_from_a_living_active_consumer(connect, crew, redis_client):
    channel = connect().channel()
    declare(channel, "q", arguments=SINGLE)
    publish(channel, "q", 1)
    options = {
        "arguments": SINGLE,
        "ack": False,
        "stepped_clock": True,
        "consumer_heartbeat_timeout": 3,
        "visibility_timeout": 300,
    }
    for name in ("active", "a", "b", "c"):
        crew.start(name, **options)
        crew.wait()
    active, activations = redis_client.hmget("meta:{q}", "active", "activations")
    before = heartbeats(redis_client)
    redis_client.set(OFFSET_KEY, 60_000)
    # All are heard for longer than the timeout.
    later = 60_000 + 5_000
    wait_until(lambda: all(due > before.get(name, 0) + later for name, due in heartbeats(redis_client).items()), SERVED_S)
    assert redis_client.hmget("meta:{q}", "active", "activations", "takeover") == [active, activations, None]
    assert redis_client.zcard("consumers:{q}") == 4
    assert crew.notes() == [("active", "1", False)]


@pytest.mark.not_on("cluster", "cluster-tls", reason="the clock of its scripts is a key of another slot")
def test_a_new_consumer_does_not_replace_a_living_one_after_a_step_of_the_clock(connect, crew, redis_client):
    channel = connect().channel()
    declare(channel, "q", arguments=SINGLE)
    publish(channel, "q", 1, 2)
    options = {"arguments": SINGLE, "ack": False, "stepped_clock": True, "visibility_timeout": 300}
    crew.start("active", **options)
    crew.wait()
    wait_until(lambda: crew.count() == 1, SERVED_S)
    redis_client.set(OFFSET_KEY, 3_600_000)
    # It joins when the living one's heartbeat is long overdue, by that clock.
    crew.start("new", **options)
    crew.wait()
    stepped = now_ms(redis_client) + 3_600_000
    wait_until(lambda: len([due for due in heartbeats(redis_client).values() if due > stepped]) == 2, SERVED_S)
    assert redis_client.zcard("consumers:{q}") == 2
    assert redis_client.hget("meta:{q}", "activations") == b"1"
    assert crew.notes() == [("active", "1", False)]


@pytest.mark.not_on("cluster", "cluster-tls", reason="the clock of its scripts is a key of another slot")
def test_no_consumer_gets_a_queue_alone_beside_a_living_one_after_a_step_of_the_clock(connect, crew, redis_client):
    """Although the queue has no rules yet, and the living consumer's heartbeat is long overdue, by that clock."""
    channel = connect().channel()
    declare(channel, "q")
    publish(channel, "q", 1)
    crew.start("living", stepped_clock=True, visibility_timeout=300)
    crew.wait()
    # By then it has given its first heartbeat as well.
    wait_until(lambda: crew.count() == 1, SERVED_S)
    redis_client.set(OFFSET_KEY, 3_600_000)
    with scripts_with_steps(), pytest.raises(ChannelError, match="has consumers"):
        connect().channel().basic_consume("q", exclusive=True)
    publish(channel, "q", 2)
    wait_until(lambda: crew.count() == 2, SERVED_S)
    assert redis_client.zcard("consumers:{q}") == 1


def test_a_stalled_server_replaces_nobody(connect, own_server, tmp_path):
    with (
        own_server.client(JOURNAL_DB) as journal,
        own_server.client() as client,
        consumers(own_server.url(), journal, tmp_path) as crew,
    ):
        channel = connect(own_server.url()).channel()
        declare(channel, "q", arguments=SINGLE)
        publish(channel, "q", 1)
        for name in ("active", "a", "b"):
            crew.start(name, arguments=SINGLE, ack=False, **LIFE)
            crew.wait()
        active, activations = client.hmget("meta:{q}", "active", "activations")
        own_server.freeze()
        stalled_at = time.monotonic()
        wait_until(lambda: time.monotonic() - stalled_at > 2)
        own_server.thaw()
        back_at = now_ms(client) + 2000
        wait_until(lambda: all(due > back_at for due in heartbeats(client).values()), SERVED_S)
        assert client.hmget("meta:{q}", "active", "activations", "takeover") == [active, activations, None]
        assert crew.notes() == [("active", "1", False)]


def test_the_list_of_a_lasting_queue_does_not_expire_and_counts_the_living(connect, crew, redis_client):
    channel = connect().channel()
    declare(channel, "q")
    crew.start("killed", **LIFE, consumer_heartbeat_timeout=2)
    crew.wait()
    assert redis_client.pttl("consumers:{q}") == -1
    assert channel.queue_declare("q", passive=True).consumer_count == 1
    crew.kill("killed")
    # No process is left that would take it off.
    wait_until(lambda: channel.queue_declare("q", passive=True).consumer_count == 0, SERVED_S)
    assert redis_client.zcard("consumers:{q}") == 1


def test_a_deleted_queue_leaves_nothing_of_its_consumers(connect, redis_client):
    channel = connect().channel()
    inbox = Inbox(channel, kombu.Queue("q", durable=True, consumer_arguments={"x-priority": 10}))
    publish(channel, "q", 1)
    inbox.cancel()
    publish(channel, "q", 2)
    Inbox(connect().channel(), kombu.Queue("q", durable=True, consumer_arguments={"x-priority": 10}))
    channel.queue_delete("q")
    # The process takes the wake-up that tells it.
    wait_until(lambda: not [key for key in redis_client.keys("*{q}*") if not key.startswith(b"producer:")], 8)
