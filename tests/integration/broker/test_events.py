"""Lifecycle events as the scripts write them."""

from __future__ import annotations

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import UnackedMessage
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.errors import EventsLost
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.events import entry_id, sampled
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from celery_redis_plus.stored_message import Outgoing
from tests.support.events import event_violations, events_of, paths_of
from tests.support.waiting import wait_until


@pytest.fixture
def archived(broker):
    """A broker whose queues are archived."""
    return with_archive(broker)


def with_archive(broker, **settings):
    broker.queues = Queues(broker.commands, broker.keys, transient_ttl_s=300, event_log=EventLogSettings(wanted=True, **settings))
    return broker


def look_again(client, **seen):
    """Have the next event look at the server again, which `seen` (fields of events_meta) may tell otherwise."""
    client.hset("events_meta:{q}", mapping={"checked": 0, **seen})
    client.hdel("meta:{q}", "log")


def names(broker, queue="q"):
    return [event.event for event in events_of(broker.client, broker.keys, queue)]


def sweep(broker, *queues, visibility_timeout_s=30.0, forward=lambda queue: None):
    limits = SweepLimits(visibility_timeout_s, 3, 5, 1000.0)
    sweeper = Sweeper(broker.commands, broker.keys, ConsumedQueues(), name="s", limits=limits, forward=forward)
    sweeper.watch(queues)
    for queue in queues:
        sweeper.run_soon(queue)
    sweeper.run()


def test_a_message_is_published_claimed_and_acked(archived):
    archived.declare("q")
    archived.publish("q", b"x")
    (message,) = archived.claim("q")
    archived.settle(Settlement.ACK, message)
    published, claimed, acked = events_of(archived.client, archived.keys, "q")
    assert [published.event, claimed.event, acked.event] == ["published", "claimed", "acked"]
    assert published.id == claimed.id == acked.id == message.tag
    assert claimed.claim == 1
    assert acked.reason is None
    assert published.ts <= claimed.ts <= acked.ts
    assert published.published_at == published.ts // 1000
    assert event_violations(archived.client, archived.keys, "q") == []


def test_entries_are_numbered_from_one_without_a_gap(archived):
    archived.declare("q")
    archived.publish("q", *[b"x"] * 5)
    archived.settle(Settlement.ACK, *archived.claim("q"))
    ids = [entry_id(entry) for entry, _ in archived.client.xrange("events:{q}")]
    (epoch,) = {epoch for epoch, _ in ids}
    assert [n for _, n in ids] == list(range(1, 16))
    assert archived.client.hget("events_meta:{q}", "epoch") == str(epoch).encode()
    assert archived.client.hget("events_meta:{q}", "version") == b"1"


def test_a_queue_without_an_event_log_has_no_events(broker):
    broker.declare("q")
    broker.publish("q", b"x")
    broker.settle(Settlement.ACK, *broker.claim("q"))
    assert broker.client.keys("events*") == []


def test_each_return_is_told(archived):
    archived.declare("q")
    archived.publish("q", b"x")
    archived.settle(Settlement.RELEASE_UNSEEN, *archived.claim("q"))
    archived.settle(Settlement.REQUEUE, *archived.claim("q"))
    archived.settle(Settlement.REJECT, *archived.claim("q"))
    told = [(event.event, event.reason) for event in events_of(archived.client, archived.keys, "q")]
    assert told == [
        ("published", None),
        ("claimed", None),
        ("requeued", "handed_back"),
        ("claimed", None),
        ("requeued", "requeue"),
        ("claimed", None),
        ("dead_lettered", "rejected"),
    ]
    assert event_violations(archived.client, archived.keys, "q") == []


def test_a_return_of_what_this_process_works_on_already_is_told_with_its_delay(archived):
    archived.declare("q")
    archived.publish("q", b"x")
    (message,) = archived.claim("q")
    given_back = UnackedMessage(message.tag, "q", message.claim, "holder", retry_delay_ms=10)
    archived.acknowledger.settle([given_back], Settlement.RELEASE_SEEN)
    wait_until(lambda: (sweep(archived, "q"), archived.queues.sizes("q").ready)[1] == 1)
    _, _, returned, promoted = events_of(archived.client, archived.keys, "q")
    assert (returned.event, returned.reason, returned.delay, returned.claim) == ("retried", "handed_back", 10, 1)
    assert promoted.event == "promoted"
    assert event_violations(archived.client, archived.keys, "q") == []


def test_a_delayed_message_is_promoted_and_a_forgotten_one_recovered(archived):
    # A server that was started just now looks like one that was away.
    wait_until(lambda: archived.client.info("server")["uptime_in_seconds"] >= 3)
    archived.declare("q")
    archived.publish("q", b"x", eta="+1")
    wait_until(lambda: (sweep(archived, "q"), archived.queues.sizes("q").ready)[1] == 1)
    archived.claim("q")
    archived.client.zadd("messages_index:{q}", {archived.client.zrange("messages_index:{q}", 0, 0)[0]: 1})
    sweep(archived, "q")
    _, delayed, promoted, claimed, recovered = events_of(archived.client, archived.keys, "q")
    assert (delayed.event, delayed.delay) == ("delayed", 1)
    assert promoted.event == "promoted"
    assert claimed.event == "claimed"
    assert (recovered.event, recovered.reason) == ("recovered", "heartbeat_lost")
    assert event_violations(archived.client, archived.keys, "q") == []


def test_a_back_off_is_told_with_its_delay_and_the_limit_with_the_death(archived):
    archived.declare("q", arguments={"x-delayed-retry-min": 10, "x-delivery-limit": 2})
    archived.publish("q", b"x")
    archived.settle(Settlement.REQUEUE, *archived.claim("q"))
    wait_until(lambda: (sweep(archived, "q"), archived.queues.sizes("q").ready)[1] == 1)
    archived.settle(Settlement.REQUEUE, *archived.claim("q"))
    events = events_of(archived.client, archived.keys, "q")
    assert [event.event for event in events] == ["published", "claimed", "retried", "promoted", "claimed", "dead_lettered"]
    assert events[2].delay == 10
    assert events[5].reason == "delivery_limit"


def test_what_expires_dies_and_what_is_purged_or_deleted_is_told(archived):
    archived.declare("q", arguments={"x-message-ttl": 1})
    archived.publish("q", b"x")
    wait_until(lambda: (sweep(archived, "q"), archived.client.zcard("dead:{q}"))[1] == 1)
    archived.publish("q", b"later", eta="+60000")
    archived.queues.purge("q")
    archived.queues.delete("q")
    paths = [[(event.event, event.reason) for event in path] for path in paths_of(archived.client, archived.keys, "q").values()]
    assert paths == [
        [("published", None), ("dead_lettered", "expired"), ("purged", "queue_deleted")],
        [("published", None), ("delayed", None), ("purged", None)],
    ]


def test_a_lost_claim_that_is_released_is_logged_as_recovered(archived):
    from celery_redis_plus.scripts import script

    archived.declare("q")
    archived.publish("q", b"x")
    archived.claim("q")
    of = archived.keys.queue("q")
    keys = [of.ready, of.index, of.message, of.wakeup, of.expiry, of.schedule_wakeup, of.meta, of.delayed]
    archived.commands.call(script("release_session"), keys, "holder", "-inf", 100)
    last = events_of(archived.client, archived.keys, "q")[-1]
    assert (last.event, last.reason) == ("recovered", "not_begun")


def test_a_sample_of_the_messages_is_told_of_and_each_as_a_whole(broker):
    broker = with_archive(broker, permille=200)
    broker.declare("q")
    broker.publish("q", *[b"x"] * 1000)
    claimed = [message for _ in range(2) for message in broker.claim("q", credit=500)]
    broker.settle(Settlement.ACK, *claimed)
    paths = paths_of(broker.client, broker.keys, "q")
    assert len(paths) == 200
    assert {tuple(event.event for event in path) for path in paths.values()} == {("published", "claimed", "acked")}
    assert paths.keys() == {message.tag for message in claimed if sampled(message.tag, 200)}


def test_only_chosen_events_are_written(broker):
    broker = with_archive(broker, events=("published", "acked"))
    broker.declare("q")
    broker.publish("q", b"x")
    broker.settle(Settlement.ACK, *broker.claim("q"))
    assert names(broker) == ["published", "acked"]


def test_the_payload_is_written_where_it_is_wanted(broker):
    broker = with_archive(broker, payload=True)
    broker.declare("q")
    broker.publish("q", b"\x00body")
    ((_, values),) = broker.client.xrange("events:{q}")
    assert values[b"p"] == b"{}\n\x00body"


def test_the_publisher_describes_a_message_once_it_knows_that_the_queue_wants_it(archived):
    from celery_redis_plus.broker.publishing.attempt import PublishAttempt

    archived.declare("q")
    asked = []
    message = Outgoing(b"{}", b"x", 255, describe=lambda: asked.append(1) or "id\ttask" + "\t" * 9)
    archived.publisher.to_queue("q", message, PublishAttempt())
    archived.declare("r", arguments={"x-event-log": False})
    archived.publisher.to_queue("r", message, PublishAttempt())
    assert len(asked) == 1
    (event,) = events_of(archived.client, archived.keys, "q")
    assert (event.task_id, event.task) == ("id", "task")
    assert names(archived, "r") == []


def test_events_are_kept_within_their_number_but_not_past_a_readers_commit_before_the_hard_bound(broker):
    broker = with_archive(broker, maxlen=10, hard_maxlen=30)
    broker.declare("q")
    broker.publish("q", *[b"x"] * 20)
    epoch = broker.client.hget("events_meta:{q}", "epoch").decode()
    broker.client.hset("events_readers:{q}", "slow", f"{epoch}-4 0")
    sweep(broker, "q")
    assert [entry_id(entry)[1] for entry, _ in broker.client.xrange("events:{q}")] == list(range(5, 21))
    broker.publish("q", *[b"x"] * 20)
    sweep(broker, "q")
    assert broker.client.xlen("events:{q}") == 30
    assert broker.client.hget("events_meta:{q}", "overrun") == b"6"
    broker.client.hdel("events_readers:{q}", "slow")
    sweep(broker, "q")
    assert broker.client.xlen("events:{q}") == 10


def test_events_stay_for_a_reader_that_is_still_in_an_earlier_epoch(broker):
    broker = with_archive(broker, maxlen=10, hard_maxlen=100)
    broker.declare("q")
    broker.publish("q", b"x")
    epoch = broker.client.hget("events_meta:{q}", "epoch").decode()
    broker.client.hset("events_readers:{q}", "slow", f"{epoch}-1 0")
    look_again(broker.client, run="0" * 40)
    broker.publish("q", *[b"x"] * 20)
    for _ in range(2):
        sweep(broker, "q")
    assert [entry_id(entry)[1] for entry, _ in broker.client.xrange("events:{q}")] == list(range(1, 21))


def test_a_sweep_that_has_more_events_to_trim_is_due_again_at_once(broker):
    broker = with_archive(broker, maxlen=100, hard_maxlen=100)
    for queue in ("q", "idle"):
        broker.declare(queue)
        broker.publish(queue, *[b"x"] * 6500)
    broker.queues.purge("idle")
    limits = SweepLimits(30.0, 3, 5, 1000.0)
    sweeper = Sweeper(broker.commands, broker.keys, ConsumedQueues(), name="s", limits=limits, forward=lambda _: None)
    sweeper.watch(["q", "idle"])
    passes = 0
    while sweeper.next_run_at <= clock.now_s():
        sweeper.run()
        passes += 1
    # 6,400 and 12,900 events have to go, 5,000 in a call.
    assert passes == 4
    assert [broker.client.xlen(f"events:{{{queue}}}") for queue in ("q", "idle")] == [100, 100]


def test_the_events_of_a_deleted_queue_are_removed_when_they_are_too_old(broker):
    broker = with_archive(broker, max_age_ms=60_000)
    broker.declare("q")
    broker.publish("q", b"x")
    broker.queues.end_event_log("q")
    broker.queues.delete("q")
    broker.queues.end_event_log("q")
    assert names(broker) == ["published", "purged"]
    broker = with_archive(broker, max_age_ms=1000)
    wait_until(lambda: (broker.queues.end_event_log("q"), broker.client.exists("events:{q}"))[1] == 0)
    assert broker.queues.registry.event_logged() == []
    assert broker.client.exists("events_meta:{q}") == 1
    wait_until(lambda: broker.client.keys("event*") == [])


def test_an_entry_by_somebody_else_ends_no_log_of_a_deleted_queue(broker):
    broker = with_archive(broker, max_age_ms=60_000)
    broker.declare("q")
    broker.publish("q", b"x")
    broker.queues.delete("q")
    broker.client.xadd("events:{q}", {"x": "y"})
    broker.queues.end_event_log("q")
    assert broker.client.xlen("events:{q}") == 3


def test_unread_events_of_a_deleted_queue_are_kept_twice_as_long_for_a_registered_reader(broker):
    broker = with_archive(broker, max_age_ms=300)
    broker.declare("q")
    broker.publish("q", b"x")
    epoch = broker.client.hget("events_meta:{q}", "epoch").decode()
    broker.client.hset("events_readers:{q}", "slow", f"{epoch}-1 0")
    broker.queues.delete("q")
    begun = clock.now_s()
    unread = []
    wait_until(lambda: (unread.append(broker.queues.end_event_log("q")), broker.client.exists("events:{q}"))[1] == 0)
    assert clock.now_s() - begun >= 0.59
    assert sum(unread) == 1


def test_a_queue_that_is_declared_again_goes_on_behind_its_removed_events(broker):
    """A reader that has read all of the old ones is told of no loss."""
    from celery_redis_plus.event_log.stream import EventLog

    broker = with_archive(broker, max_age_ms=100)
    broker.declare("q")
    broker.publish("q", *[b"x"] * 3)
    broker.queues.delete("q")
    address = broker.commands.connector.address
    with EventLog.at(address, broker.commands.connector.options) as log:
        (read,) = log.numberings(["q"]).values()
        position = read.id(read.total)
        assert read.total == 6
        wait_until(lambda: (broker.queues.end_event_log("q"), broker.client.exists("events:{q}"))[1] == 0)
        broker = with_archive(broker)
        broker.declare("q")
        broker.publish("q", b"y")
        assert broker.client.ttl("events_meta:{q}") == -1
        (found,) = log.numberings(["q"]).values()
        assert (found.index(position), found.trimmed, found.total) == (6, 6, 7)
        broker.client.delete("events:{q}")
        broker.publish("q", b"z")
        with pytest.raises(EventsLost):
            log.numberings(["q"])


def test_old_events_go_also_from_an_idle_queue(broker):
    broker = with_archive(broker, max_age_ms=20)
    broker.declare("q")
    broker.publish("q", *[b"x"] * 7)
    broker.settle(Settlement.ACK, *broker.claim("q"))
    wait_until(lambda: (sweep(broker, "q"), broker.client.xlen("events:{q}"))[1] == 0)


def test_another_server_behind_the_name_begins_a_new_epoch(archived):
    archived.declare("q")
    archived.publish("q", b"x")
    first = archived.client.hget("events_meta:{q}", "epoch").decode()
    look_again(archived.client, run="0" * 40)
    archived.publish("q", b"y")
    (_, (second, n)) = [entry_id(entry) for entry, _ in archived.client.xrange("events:{q}")]
    assert second > int(first)
    assert n == 1
    assert archived.client.hget("events_meta:{q}", "ended") == f"{first}:1 ".encode()


def test_an_epoch_ends_with_the_first_event_of_the_next_one(broker):
    """A call that looks at the server and writes no event must not end it: readers would count what follows twice."""
    broker = with_archive(broker, events=("published", "acked"))
    broker.declare("q")
    broker.publish("q", b"x")
    first = broker.client.hget("events_meta:{q}", "epoch").decode()
    look_again(broker.client, run="0" * 40)
    claimed = broker.claim("q")
    assert not broker.client.hget("events_meta:{q}", "ended")
    broker.settle(Settlement.ACK, *claimed)
    assert broker.client.hget("events_meta:{q}", "ended") == f"{first}:1 ".encode()
    (_, (second, n)) = [entry_id(entry) for entry, _ in broker.client.xrange("events:{q}")]
    assert second > int(first)
    assert n == 1


def test_with_memory_full_events_are_skipped_and_counted_so_that_acks_free_it(brokers, own_server, caplog):
    with own_server.client() as client:
        broker = with_archive(brokers(client))
        broker.declare("q")
        broker.publish("q", *[b"x" * 20_000] * 50)
        claimed = broker.claim("q", credit=40)
        used = int(client.info("memory")["used_memory"])
        look_again(client)
        client.config_set("maxmemory", used)
        before = client.xlen("events:{q}")
        broker.settle(Settlement.ACK, *claimed)
        assert client.xlen("events:{q}") == before
        assert client.hget("events_meta:{q}", "skipped") == b"40"
        assert int(client.info("memory")["used_memory"]) < used - 500_000
        caplog.set_level("WARNING")
        sweep(broker, "q")
        assert "40 event(s) of queue 'q' were not written" in caplog.text
        client.config_set("maxmemory", 0)
        look_again(client)
        broker.settle(Settlement.ACK, *broker.claim("q"))
        assert client.xlen("events:{q}") == before + 20


def test_a_transient_queue_cannot_have_an_event_log(broker):
    from celery_redis_plus.errors import InvalidArgument

    with pytest.raises(InvalidArgument, match="x-event-log"):
        broker.declare("q", durable=False, auto_delete=True, arguments={"x-event-log": True})
    with_archive(broker).declare("q", durable=False, auto_delete=True)
    broker.publish("q", b"x")
    assert broker.client.keys("events*") == []


def test_the_events_of_a_queue_that_writes_none_any_more_end_as_those_of_a_deleted_one(broker):
    broker = with_archive(broker, max_age_ms=60_000)
    broker.declare("q")
    broker.publish("q", b"x")
    broker.client.hset("events_readers:{q}", "slow", f"{broker.client.hget('events_meta:{q}', 'epoch').decode()}-1 0")
    broker.queues = Queues(broker.commands, broker.keys, transient_ttl_s=300, event_log=EventLogSettings(wanted=False))
    broker.declare("q")
    broker.publish("q", b"y")
    assert broker.queues.registry.without_event_log(broker.queues.registry.event_logged()) == ["q"]
    broker.queues.end_event_log("q")
    assert names(broker) == ["published"]
    # Nobody writes, and so nobody trims: the reader that has read all of it is waited for no longer than for its age.
    broker.queues = Queues(
        broker.commands, broker.keys, transient_ttl_s=300, event_log=EventLogSettings(wanted=False, max_age_ms=300)
    )
    unread = []
    wait_until(lambda: (unread.append(broker.queues.end_event_log("q")), broker.client.exists("events:{q}"))[1] == 0)
    assert sum(unread) == 0
    assert broker.queues.registry.event_logged() == []
    wait_until(lambda: broker.client.keys("event*") == [])
    assert broker.bodies("q") == [b"x", b"y"]


def test_a_queue_whose_events_are_switched_on_again_keeps_its_log(broker):
    broker = with_archive(broker, max_age_ms=100)
    broker.declare("q")
    broker.publish("q", b"x")
    off = Queues(broker.commands, broker.keys, transient_ttl_s=300, event_log=EventLogSettings(wanted=False, max_age_ms=100))
    archived, broker.queues = broker.queues, off
    broker.declare("q")
    wait_until(lambda: (off.end_event_log("q"), broker.client.exists("events:{q}"))[1] == 0)
    broker.queues = archived
    broker.declare("q")
    assert off.registry.event_logged() == ["q"]
    off.end_event_log("q")
    broker.publish("q", b"y")
    assert names(broker) == ["published"]
    assert off.registry.event_logged() == ["q"]
