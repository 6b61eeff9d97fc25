"""The number of shards is raised, and every message goes to its queue's new shard: once, and in its order."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import suppress

import kombu
import pytest
from kombu import exceptions

from celery_redis_plus.admin.shard_admin import admin_of_url, raise_of_url
from celery_redis_plus.cli.main import main
from celery_redis_plus.connection.persistent_connection import PersistentConnection
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.errors import OptionError, ShardsRaised
from celery_redis_plus.shards import raising, shard_state
from tests.integration.shards.conftest import SHARDS
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

MORE = 6
#: One queue for each way from an old shard to a new one.
QUEUES = [next(name for number in range(99) if shard_of(name := f"q{number}", MORE) == shard) for shard in range(MORE)]


@pytest.fixture(autouse=True)
def new_processes():
    """Know nothing of the shards of the database that was emptied."""
    shard_state.forget()


@pytest.fixture
def url(broker_url):
    return f"{broker_url}?shards={SHARDS}"


@pytest.fixture
def connect_more(connect):
    return lambda **options: connect(shards=MORE, **options)


def raised(url, shards=MORE):
    with raise_of_url(url, shards) as found:
        return sum(found.run(lambda: False))


def test_messages_go_with_their_queues_in_their_order(connect_shards, connect_more, url):
    channel = connect_shards().channel()
    declare(channel, *QUEUES)
    producer = kombu.Producer(channel)
    for queue in QUEUES:
        for number in range(150):
            producer.publish(number, routing_key=queue, priority=number % 3)
        producer.publish("later", routing_key=queue, headers={"x-delay": 3000})
    assert raised(url) == 151 * sum(shard_of(queue, MORE) >= SHARDS or shard_of(queue, SHARDS) > 0 for queue in QUEUES)
    wanted = sorted(range(150), key=lambda number: -(number % 3))
    for queue in QUEUES:
        inbox = Inbox(connect_more().channel(), queue)
        assert inbox.drain(151, timeout_s=10) == [*wanted, "later"]
    with admin_of_url(url.replace(f"={SHARDS}", f"={MORE}")) as admin:
        assert list(admin.checker().run()) == []


def raise_for(url, seconds):
    """Raise the number, and leave what takes longer."""
    until = time.monotonic() + seconds
    with raise_of_url(url, MORE) as found:
        return sum(found.run(lambda: time.monotonic() > until))


def test_publishers_and_consumers_with_the_old_number_come_along(connect_shards, url):
    publisher, consumer = connect_shards(), connect_shards()
    producer = kombu.Producer(publisher.channel())
    declare(producer.channel, *QUEUES)
    inbox = Inbox(consumer.channel(), *QUEUES, ack=False)
    for queue in QUEUES:
        publish(producer.channel, queue, f"{queue} before")
    inbox.drain(MORE)
    assert raise_for(url, 1) == 0
    # The old consumers have these; what is given back comes along.
    for message in inbox.messages:
        if message.payload == f"{QUEUES[4]} before":
            message.requeue()
        else:
            message.ack()
    for queue in QUEUES:
        producer.publish(f"{queue} after", routing_key=queue, retry=True, retry_policy={"max_retries": 3})
    assert len(publisher.transport.numbers) == MORE
    with pytest.raises(consumer.connection_errors):
        wait_until(lambda: inbox.pump(0.1) and False, 30)
    assert raised(url) == 1
    assert sorted(Inbox(connect_shards().channel(), *QUEUES).drain(MORE + 1, timeout_s=10)) == sorted(
        [*(f"{queue} after" for queue in QUEUES), f"{QUEUES[4]} before"]
    )


def test_publishers_to_exchanges_come_along(connect_shards, connect_more, url):
    publisher, exchange = connect_shards(), kombu.Exchange("orders", "topic")
    news = kombu.Exchange("news", "fanout")
    for queue in QUEUES:
        kombu.Queue(queue, exchange, "#")(publisher.channel()).declare()
    news(publisher.channel()).declare()
    producer = kombu.Producer(publisher.channel())
    producer.publish("before", exchange="orders", routing_key="x")
    raised(url)
    heard = Inbox(connect_more().channel(), kombu.Queue("heard", news, exclusive=True))
    heard.pump(0.1)
    retry = {"retry": True, "retry_policy": {"max_retries": 3}}
    producer.publish("after", exchange="orders", routing_key="x", **retry)
    kombu.Producer(connect_shards().channel()).publish("news", exchange="news", routing_key="", **retry)
    assert heard.drain(1, timeout_s=5) == ["news"]
    for queue in QUEUES:
        assert Inbox(connect_more().channel(), kombu.Queue(queue, no_declare=True)).drain(2, timeout_s=5) == ["before", "after"]


@pytest.mark.parametrize("at", [pytest.param(at, marks=[] if at % 30 == 0 else pytest.mark.weekly) for at in range(170)])
def test_a_kill_between_any_two_calls_loses_and_doubles_nothing(connect_shards, connect_more, url, monkeypatch, at):
    channel = connect_shards().channel()
    declare(channel, *QUEUES[3:5])
    for queue in QUEUES[3:5]:
        publish(channel, queue, *range(5))
    calls, ask = itertools.count(), PersistentConnection._open  # noqa: SLF001

    def dies(self):
        if self.purpose == "operator" and next(calls) == at:
            raise KeyboardInterrupt
        return ask(self)

    monkeypatch.setattr(raising, "LOOK_S", 0.0)
    with monkeypatch.context() as killed:
        killed.setattr(PersistentConnection, "_open", dies)
        with suppress(KeyboardInterrupt):
            raised(url)
    raised(url)
    for queue in QUEUES[3:5]:
        inbox = Inbox(connect_more().channel(), queue)
        assert inbox.drain(5, timeout_s=5) == list(range(5))
        assert not inbox.pump(0.1)


def test_a_raise_that_was_given_up_leaves_other_numbers_free(connect_shards, connect_more, url, monkeypatch):
    channel = connect_shards().channel()
    declare(channel, *QUEUES)
    with monkeypatch.context() as given_up:
        given_up.setattr(raising.ShardsRaise, "_tell", lambda _: exec("raise KeyboardInterrupt"))
        with suppress(KeyboardInterrupt):
            raised(url)
    publish(channel, QUEUES[4], "goes on")
    with pytest.raises(OptionError, match=f"allowed: {SHARDS}"):
        connect_more()
    # The third shards of 5 and of 6 have the same keys.
    raised(url, 5)
    assert Inbox(connect_shards().channel(), QUEUES[4]).drain(1, timeout_s=5) == ["goes on"]


def test_a_queue_with_a_single_active_consumer_waits_for_it(connect_shards, connect_more, url):
    channel, queue = connect_shards().channel(), QUEUES[4]
    declare(channel, queue, arguments={"x-single-active-consumer": True})
    publish(channel, queue, "first", "second")
    inbox = Inbox(channel, queue, ack=False, prefetch=1)
    inbox.drain(1)
    until = time.monotonic() + 1
    with raise_of_url(url, MORE, patience_s=0.0) as found:
        assert sum(found.run(lambda: time.monotonic() > until)) == 1
    new = Inbox(connect_more().channel(), queue)
    assert not new.pump(0.5)
    inbox.messages[0].ack()
    assert raised(url) == 0
    assert new.drain(1, timeout_s=5) == ["second"]


def publish_batch(connection, body):
    producer = kombu.Producer(connection.channel())
    with producer.batch():
        for queue in QUEUES:
            producer.publish(body, routing_key=queue)


@pytest.mark.skipif(not hasattr(exceptions, "BatchPublishError"), reason="kombu before 5.7 has no batches")
def test_a_batch_comes_along(connect_shards, connect_more, url):
    connection = connect_shards()
    declare(connection.default_channel, *QUEUES)
    raised(url)
    with pytest.raises(exceptions.BatchPublishError, match="messages of the batch are not published"):
        publish_batch(connection, "refused")
    publish_batch(connection, "second")
    for queue in QUEUES:
        inbox = Inbox(connect_more().channel(), queue)
        wait_until(lambda inbox=inbox: not inbox.pump(0.1) and inbox.bodies)
        # Shard 0 is in both.
        assert inbox.bodies in (["second"], ["refused", "second"])


def test_a_broker_that_is_begun_anew_has_the_number_of_the_option_again(connect_shards, url, redis_client):
    declare(connect_shards().channel(), *QUEUES)
    raised(url)
    assert len(connect_shards().transport.numbers) == MORE
    redis_client.flushall()
    redis_client.set("database_id", f"2.{0:016x}.{SHARDS}")
    channel = connect_shards().channel()
    publish(channel, QUEUES[4], "anew")
    assert len(channel.numbers) == SHARDS


def test_dead_letters_come_along(connect_shards, connect_more, url):
    channel, queue = connect_shards().channel(), QUEUES[4]
    inbox = Inbox(channel, queue, ack=False)
    publish(channel, queue, "dead")
    inbox.drain(1)
    inbox.messages[0].reject()
    inbox.cancel()
    assert raised(url) == 1
    assert dead_letters_of(connect_more().channel().of_queue(queue).session).count(queue) == 1


def test_policies_are_in_force_in_the_new_shards_beside_what_was_declared(connect_shards, connect_more, url):
    declare(connect_shards().channel(), *QUEUES, arguments={"x-max-length": 100})
    with admin_of_url(url) as admin:
        admin.set_policy("q*", {"x-max-length": 5}, "less")
    raised(url)
    with admin_of_url(url.replace(f"={SHARDS}", f"={MORE}")) as admin:
        assert [admin.arguments(queue) for queue in QUEUES] == [{"x-max-length": 5}] * MORE
        declare(connect_more(on_mismatch="error").channel(), *QUEUES, arguments={"x-max-length": 100})
        admin.remove_policy("q*")
        assert [admin.arguments(queue) for queue in QUEUES] == [{"x-max-length": 100}] * MORE


def test_a_process_without_shards_is_refused_with_the_number(connect, connect_more, broker_url):
    plain = connect().channel()
    declare(plain, *QUEUES)
    for queue in QUEUES:
        publish(plain, queue, "before")
    raised(broker_url)
    with pytest.raises(ShardsRaised, match=f"allowed: {MORE}, .*raised from 1"):
        publish(plain, QUEUES[4], "lost", retry=False)
    with pytest.raises(ShardsRaised):
        connect()
    assert Inbox(connect_more().channel(), *QUEUES).drain(MORE, timeout_s=10) == ["before"] * MORE


def test_a_number_that_is_not_above_it_is_refused(connect_shards, url, broker_url):
    with pytest.raises(OptionError, match="this broker is empty"):
        raised(url)
    declare(connect_shards().channel(), *QUEUES)
    with pytest.raises(OptionError, match="allowed is a number above it"):
        raised(url, SHARDS)
    with pytest.raises(OptionError, match="shards=4 is not allowed for this broker; allowed: 3"):
        raised(f"{broker_url}?shards=4")


def test_the_command_says_what_it_would_do_and_does_it(connect_shards, url, capsys):
    channel = connect_shards().channel()
    declare(channel, *QUEUES)
    publish(channel, QUEUES[4], "x", "y")
    command = ["shards", "raise", "--broker", url, str(MORE), "--json"]
    assert main([*command, "--dry-run"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"queue": QUEUES[4], "shard": 1, "new_shard": 4, "waiting": 2, "unacked": 0} in found
    assert len(found) == MORE - 1
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == {"before": SHARDS, "shards": MORE, "moved": 2, "unacked": 0}
    with raise_of_url(url, MORE) as again:
        (entry,) = again.audit.entries()
    assert (entry.action, entry.count, entry.outcome, entry.details) == ("raise shards", 2, "done", {"shards": str(MORE)})
    assert main(["queues", "--broker", url]) != 0
    assert f"allowed: {MORE}" in capsys.readouterr().err
