"""The number of shards is raised, and every message goes to its queue's new shard: once, and in its order."""

from __future__ import annotations

import itertools
import json
from contextlib import contextmanager, suppress

import kombu
import pytest
from kombu import exceptions

from celery_redis_plus.admin.shard_admin import admin_of_url, raise_of_url
from celery_redis_plus.broker.exchanges.declared_topology import numbers_of_shards
from celery_redis_plus.broker.queues.groups import GroupRule
from celery_redis_plus.cli.main import main
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.persistent_connection import PersistentConnection
from celery_redis_plus.connection.shard_layout import shard_of, shard_prefixes
from celery_redis_plus.errors import OptionError, QueueFull, ShardsRaised
from celery_redis_plus.keys import Keys
from celery_redis_plus.shards import queue_move, raising, shard_state
from tests.integration.shards.conftest import SHARDS
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

MORE = 6
#: One queue for each way from an old shard to a new one.
QUEUES = [next(name for number in range(99) if shard_of(name := f"q{number}", MORE) == shard) for shard in range(MORE)]


@pytest.fixture(autouse=True)
def new_processes(monkeypatch):
    """Know nothing of the shards of the database that was emptied, and look at old shards for a moment only."""
    shard_state.forget()
    monkeypatch.setattr(raising, "LOOK_S", 0.3)


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


def test_messages_of_a_group_go_in_their_order(connect_shards, connect_more, url):
    channel, arguments = connect_shards().channel(), {"x-group-concurrency": 1}
    queue = next(name for name in QUEUES if shard_of(name, MORE) != shard_of(name, SHARDS))
    declare(channel, queue, arguments=arguments)
    for group in "abc":
        publish(channel, queue, *(f"{group}{number:03}" for number in range(120)), headers={"x-message-group": group})
    with admin_of_url(url) as admin:
        admin.set_group(queue, "c", paused=True)
    raised(url)
    inbox = Inbox(connect_more().channel(), kombu.Queue(queue, durable=True, queue_arguments=arguments), prefetch=1)
    found = inbox.exactly(240)
    with admin_of_url(url.replace(f"={SHARDS}", f"={MORE}")) as admin:
        assert {one.group: one.rule for one in admin.groups(queue)} == {"c": GroupRule(paused=True)}
    for group in "ab":
        assert [body for body in found if body[0] == group] == [f"{group}{number:03}" for number in range(120)]


def test_bytes_that_came_along_count(connect_shards, connect_more, url):
    queue = next(name for name in QUEUES if shard_of(name, MORE) != shard_of(name, SHARDS))
    limits = {"x-max-length-bytes": 4000, "x-overflow": "reject-publish"}
    channel = connect_shards().channel()
    declare(channel, queue, arguments=limits)
    publish(channel, queue, *["x" * 1500] * 2)
    assert raised(url) == 2
    with pytest.raises(QueueFull):
        publish(connect_more().channel(), queue, "x" * 1500)


def test_a_raise_looks_like_a_flush_to_no_process(connect_shards, url, redis_client):
    def ids():
        return {key: redis_client.get(key).split(b".")[1] for key in redis_client.keys("*database_id")}

    declare(connect_shards().channel(), *QUEUES)
    before = ids()
    assert len(before) == SHARDS
    raised(url)
    assert before.items() <= ids().items()


@pytest.mark.parametrize("for_s", [None, 3600])
def test_a_paused_queue_stays_paused_in_its_new_shard(connect_shards, url, for_s):
    channel = connect_shards().channel()
    queue = next(name for name in QUEUES if shard_of(name, MORE) != shard_of(name, SHARDS))
    declare(channel, queue)
    publish(channel, queue, "x")
    with admin_of_url(url) as admin:
        admin.pause(queue, "an import runs", for_s)
    assert raised(url) == 1
    with admin_of_url(url.replace(f"={SHARDS}", f"={MORE}")) as admin:
        pause = admin.paused(queue)
        assert (pause.reason, pause.until is None) == ("an import runs", for_s is None)


def raise_for(url, seconds, moved=0, **options):
    """Raise the number, and leave what comes more than so many seconds after `moved` messages; return how many have moved."""
    pages, since = [], []

    def stopped():
        if sum(pages) < moved:
            return False
        since.append(machine_time())
        return since[-1] - since[0] > seconds

    with raise_of_url(url, MORE, **options) as found:
        pages.extend(found.run(stopped))
    return sum(pages)


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


@pytest.mark.parametrize("at", [pytest.param(at, marks=[] if at % 30 == 0 else pytest.mark.weekly) for at in range(230)])
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


def test_the_shard_that_decides_is_told_of_the_number_before_the_others(
    connect_shards, connect_more, url, redis_client, monkeypatch
):  # fmt: skip
    """A kill between the two leaves a number that all processes agree upon."""
    channel = connect_shards().channel()
    declare(channel, *QUEUES)
    for queue in QUEUES:
        publish(channel, queue, *range(5))
    first, *others = (Keys(prefix).database_id for prefix in shard_prefixes("", SHARDS))
    command = CommandConnection.command

    def dies(self, *arguments, **options):
        if arguments[0] == "SET" and arguments[1] in others:
            raise KeyboardInterrupt
        return command(self, *arguments, **options)

    with monkeypatch.context() as killed:
        killed.setattr(CommandConnection, "command", dies)
        with pytest.raises(KeyboardInterrupt):
            raised(url)
    assert numbers_of_shards(redis_client.get(first))[0] == MORE
    assert [numbers_of_shards(redis_client.get(mark))[0] for mark in others] == [SHARDS] * len(others)
    raised(url)
    for queue in QUEUES:
        inbox = Inbox(connect_more().channel(), queue)
        assert inbox.drain(5, timeout_s=5) == list(range(5))
        assert not inbox.pump(0.1)


def test_a_page_that_took_too_long_is_moved_with_the_next_raise(connect_shards, connect_more, url, monkeypatch):
    """Its time is over, as after a standstill: another call may have moved it meanwhile."""
    channel = connect_shards().channel()
    declare(channel, *QUEUES)
    for queue in QUEUES:
        publish(channel, queue, *range(5))
    with monkeypatch.context() as stood_still:
        stood_still.setattr(queue_move, "STORE_WITHIN_MS", -60_000)
        with pytest.raises(TimeoutError, match="took too long"):
            raised(url)
    raised(url)
    for queue in QUEUES:
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


@pytest.mark.parametrize("limit", [{"x-single-active-consumer": True}, {"x-max-unacked": 1}, {"x-group-concurrency": 1}])
def test_a_queue_with_a_limit_of_what_is_in_work_waits_for_it(connect_shards, connect_more, url, limit):
    channel, queue = connect_shards().channel(), QUEUES[4]
    declare(channel, queue, arguments=limit)
    publish(channel, queue, "first", "second")
    known = kombu.Queue(queue, no_declare=True)
    inbox = Inbox(channel, known, ack=False, prefetch=1)
    inbox.drain(1)
    assert raise_for(url, 1, moved=1, patience_s=0.0) == 1
    new = Inbox(connect_more().channel(), known)
    assert not new.pump(0.5)
    inbox.messages[0].ack()
    assert raised(url) == 0
    assert new.drain(1, timeout_s=5) == ["second"]


def test_a_queue_whose_last_message_is_acked_between_two_looks_is_resumed(connect_shards, connect_more, url, monkeypatch):
    queue = QUEUES[4]
    inbox = Inbox(connect_shards().channel(), queue, ack=False)
    publish(inbox.channel, queue, "in work")
    inbox.drain(1)
    finish = raising.ShardsRaise._finish  # noqa: SLF001

    def acked_before(self):
        while inbox.messages:
            inbox.messages.pop().ack()
            wait_until(lambda: next(iter(self._moves.values())).left() == (0, 0))
        return finish(self)

    monkeypatch.setattr(raising.ShardsRaise, "_finish", acked_before)
    raised(url)
    channel = connect_more().channel()
    publish(channel, queue, "after")
    assert Inbox(channel, kombu.Queue(queue, no_declare=True)).drain(1, timeout_s=5) == ["after"]


@contextmanager
def killed_at(monkeypatch, owner, name):
    """Have a raise end there as by a kill."""
    with monkeypatch.context() as killed, suppress(KeyboardInterrupt):
        killed.setattr(owner, name, lambda *_, **__: exec("raise KeyboardInterrupt"))
        yield


def test_another_number_waits_until_the_raise_is_done(connect_shards, connect_more, connect, url, monkeypatch):
    channel = connect_shards().channel()
    declare(channel, *QUEUES)
    for queue in QUEUES:
        publish(channel, queue, "before")
    # Both have looked at the broker.
    with raise_of_url(url, MORE) as first, raise_of_url(url, 9) as second:
        with killed_at(monkeypatch, raising.RaiseTopology, "follow"):
            sum(first.run(lambda: False))
        with pytest.raises(OptionError, match="changed by another command"):
            sum(second.run(lambda: False))
        more = url.replace(f"={SHARDS}", f"={MORE}")
        with pytest.raises(OptionError, match=f"the raise to {MORE} shards is not done"):
            raised(more, 9)
    with raise_of_url(url, MORE) as first:
        first.hold.begin()
        with pytest.raises(OptionError, match=f"another command raises the number of shards to {MORE} now"):
            raised(more, 9)
        first.hold.end(done=False)
    with admin_of_url(more) as admin:
        found = {(one.rule, one.owner): one.detail for one in admin.checker().run()}
        assert f"{MORE}` again" in found["raise-not-done", ""]
        # The others are in shards that only the former number has.
        astray = [queue for queue in QUEUES if shard_of(queue, SHARDS) == 0 < shard_of(queue, MORE)]
        assert sorted(owner for rule, owner in found if rule == "other-shard") == astray
    raised(url)
    with admin_of_url(more) as admin:
        assert list(admin.checker().run()) == []
    raised(more, 9)
    assert Inbox(connect(shards=9).channel(), *QUEUES).drain(MORE, timeout_s=10) == ["before"] * MORE


def test_a_raise_that_was_given_up_leaves_nothing_behind(connect_shards, connect_more, url, monkeypatch):
    channel = connect_shards().channel()
    declare(channel, *QUEUES)
    with admin_of_url(url) as admin:
        admin.set_policy("q*", {"x-max-length": 5}, "less")
    with killed_at(monkeypatch, raising.ShardsRaise, "_tell"):
        raised(url)
    with admin_of_url(url) as admin:
        admin.remove_policy("q*")
    channel.queue_delete(QUEUES[3])
    raised(url)
    with admin_of_url(url.replace(f"={SHARDS}", f"={MORE}")) as admin:
        assert admin.policies() == []
        assert sorted(admin.queues()) == sorted({*QUEUES} - {QUEUES[3]})
        assert [admin.arguments(queue) for queue in QUEUES if queue != QUEUES[3]] == [{}] * (MORE - 1)
        assert not any(admin.paused(queue) for queue in QUEUES if queue != QUEUES[3])


def test_queues_of_a_fanout_exchange_go_from_their_own_shard_alone(connect_shards, connect_more, url, monkeypatch):
    channel, news = connect_shards().channel(), kombu.Exchange("news", "fanout", durable=True)
    stays = next(name for number in range(99) if shard_of(name := f"s{number}", SHARDS) == 0 == shard_of(name, MORE))
    for queue in (stays, *QUEUES):
        kombu.Queue(queue, news)(channel).declare()
        publish(channel, queue, *range(3))
    with raise_of_url(url, MORE) as found:
        assert sorted(move.name for move in found.moving()) == sorted(QUEUES[1:])
    with killed_at(monkeypatch, raising.ShardsRaise, "_tell"):
        raised(url)
    with admin_of_url(url) as admin:
        assert admin.paused(stays) is None
    assert raised(url) == 3 * (MORE - 1)
    with admin_of_url(url.replace(f"={SHARDS}", f"={MORE}")) as admin:
        assert list(admin.checker().run()) == []
        assert not any(admin.paused(queue) for queue in (stays, *QUEUES))
    for queue in (stays, *QUEUES):
        assert Inbox(connect_more().channel(), kombu.Queue(queue, no_declare=True)).drain(3, timeout_s=5) == [0, 1, 2]


def test_a_binding_made_while_the_number_is_told_comes_along(connect_shards, connect_more, url, monkeypatch):
    channel, exchange = connect_shards().channel(), kombu.Exchange("orders", "topic", durable=True)
    declare(channel, "other")
    tell = raising.ShardsRaise._tell  # noqa: SLF001

    def bound_before(self):
        for queue in QUEUES:
            kombu.Queue(queue, exchange, "#")(channel).declare()
        tell(self)

    monkeypatch.setattr(raising.ShardsRaise, "_tell", bound_before)
    raised(url)
    more = connect_more().channel()
    kombu.Producer(more).publish("x", exchange="orders", routing_key="a")
    assert Inbox(more, *(kombu.Queue(queue, no_declare=True) for queue in QUEUES)).drain(MORE, timeout_s=5) == ["x"] * MORE


def test_a_process_without_shards_hears_of_it_at_an_exchange_whose_queues_stay(connect, broker_url):
    plain, exchange = connect().channel(), kombu.Exchange("orders", "direct", durable=True)
    kombu.Queue(QUEUES[0], exchange, "k")(plain).declare()
    kombu.Producer(plain).publish("before", exchange="orders", routing_key="k")
    raised(broker_url)
    with pytest.raises(ShardsRaised):
        kombu.Producer(plain).publish("lost", exchange="orders", routing_key="k", retry=False)


def test_durable_subscribers_miss_no_broadcast(connect_shards, connect_more, url):
    exchanges = {name: kombu.Exchange(name, "fanout", durable=True) for name in (f"news{number}" for number in range(MORE))}
    arguments = {"x-durable-subscriber": True}
    queues = [
        kombu.Queue(f"of-{name}", exchange, durable=True, queue_arguments=arguments) for name, exchange in exchanges.items()
    ]
    inbox = Inbox(connect_shards().channel(), *queues)
    producer = kombu.Producer(connect_shards().channel())
    for name in exchanges:
        producer.publish("read", exchange=name, routing_key="")
    inbox.drain(MORE)
    inbox.channel.connection.client.release()
    away = next(name for name in exchanges if shard_of(name, SHARDS))
    producer.publish("unread", exchange=away, routing_key="")
    with pytest.raises(OptionError, match=f"'of-{away}' has not read 1 broadcast.* of exchange '{away}'"):
        raised(url)
    again = Inbox(connect_shards().channel(), *queues)
    assert again.drain(1, timeout_s=5) == ["unread"]
    again.channel.connection.client.release()
    raised(url)
    producer = kombu.Producer(connect_more().channel())
    for name in exchanges:
        producer.publish("after", exchange=name, routing_key="")
    assert Inbox(connect_more().channel(), *queues).drain(MORE, timeout_s=10) == ["after"] * MORE


def test_queues_with_an_expiry_go_along(connect_shards, connect_more, url, redis_client):
    channel = connect_shards().channel()
    queues = [kombu.Queue(queue, durable=True, expires=3600) for queue in QUEUES]
    inbox = Inbox(channel, queues[4], ack=False, prefetch=1)
    for queue in queues:
        queue(channel).declare()
        publish(channel, queue.name, *range(3))
    inbox.drain(1)
    kombu.Queue("transient", auto_delete=True)(channel).declare()
    all_ready = 3 * (MORE - 1) - 1
    assert raise_for(url, 0.5, moved=all_ready) == all_ready
    source = next(key for key in redis_client.scan_iter(f"*messages_index:{{{QUEUES[4]}}}") if redis_client.zcard(key))
    message = next(redis_client.scan_iter(source.replace(b"messages_index", b"message") + b":*"))
    assert redis_client.pttl(source) == redis_client.pttl(message) == -1
    inbox.messages[0].requeue()
    assert raised(url) == 1
    for queue in queues:
        assert Inbox(connect_more().channel(), queue).drain(3, timeout_s=5) == [0, 1, 2]
    with admin_of_url(url.replace(f"={SHARDS}", f"={MORE}")) as admin:
        assert list(admin.checker().run()) == []


def test_broadcasts_of_the_last_moment_that_nobody_reads_are_named(connect_shards, url, monkeypatch, capsys):
    exchange = next(name for number in range(99) if shard_of(name := f"news{number}", SHARDS))
    arguments = {"x-durable-subscriber": True}
    queue = kombu.Queue("heard", kombu.Exchange(exchange, "fanout", durable=True), durable=True, queue_arguments=arguments)
    channel = connect_shards().channel()
    queue(channel).declare()
    tell = raising.ShardsRaise._tell  # noqa: SLF001

    def published_before(self):
        kombu.Producer(channel).publish("late", exchange=exchange, routing_key="")
        tell(self)

    monkeypatch.setattr(raising.ShardsRaise, "_tell", published_before)
    assert main(["shards", "raise", "--broker", url, str(MORE), "--patience", "0s"]) == 1
    assert f"1 broadcast(s) of exchange '{exchange}'" in capsys.readouterr().err


def test_a_full_server_lets_messages_go(connect_shards, connect_more, url, redis_client, monkeypatch):
    channel = connect_shards().channel()
    declare(channel, *QUEUES)
    for queue in QUEUES:
        publish(channel, queue, "x" * 10_000)
    follow = raising.RaiseTopology.follow

    def full_from_now_on(self, **fanout):
        redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory"] - 1000)
        follow(self, **fanout)

    monkeypatch.setattr(raising.RaiseTopology, "follow", full_from_now_on)
    try:
        assert raised(url) == MORE - 1
        inbox = Inbox(connect_more().channel(), *(kombu.Queue(queue, no_declare=True) for queue in QUEUES))
        assert len(inbox.drain(MORE, timeout_s=10)) == MORE
    finally:
        redis_client.config_set("maxmemory", 0)


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
    assert dead_letters_of(connect_more().channel().of_queue(queue)).count(queue) == 1


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
