from __future__ import annotations

import threading

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers import acks
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.maintenance.reconnect_recovery import REFUSED_AGAIN_S, SESSION_RECHECK_S, ReconnectRecovery
from celery_redis_plus.scripts import script
from tests.integration.broker.conftest import DEAD_MAX
from tests.support.process_clock import ProcessClock

BACK = [Settlement.REQUEUE, Settlement.RELEASE_SEEN, Settlement.RELEASE_UNSEEN]


@pytest.mark.parametrize("settlement", BACK)
def test_what_comes_back_stands_where_it_stood(broker, settlement):
    broker.declare("q")
    broker.publish("q", b"low", rank=255)
    broker.publish("q", b"high", rank=0)
    broker.publish("q", b"low too", rank=255)
    before = broker.client.zrange("queue:{q}", 0, -1, withscores=True)
    broker.settle(settlement, *reversed(broker.claim("q")))
    assert broker.client.zrange("queue:{q}", 0, -1, withscores=True) == before
    broker.check(swept=True)


def test_what_an_operator_takes_from_its_consumer_comes_again_flagged(broker):
    broker.declare("q")
    broker.publish("q", b"x")
    (message,) = broker.claim("q")
    assert Messages(broker.commands, broker.keys, dead_letter_max=DEAD_MAX).give_back("q", [message.tag]) == [message.tag]
    assert [again.redelivered for again in broker.claim("q")] == [True]


@pytest.mark.parametrize("settlement", [*BACK, Settlement.REJECT])
def test_an_old_claim_number_changes_nothing(broker, settlement):
    broker.declare("q")
    broker.publish("q", b"x")
    (old,) = broker.claim("q")
    broker.settle(Settlement.REQUEUE, old)
    broker.settle(settlement, old)
    assert broker.queues.sizes("q").ready == 1
    (new,) = broker.claim("q")
    broker.settle(settlement, old)
    assert broker.queues.sizes("q").unacked == 1
    broker.settle(Settlement.ACK, new)
    broker.settle(settlement, new)
    assert broker.client.keys("message:*") == []
    broker.check()


@pytest.mark.parametrize("place", ["claimed", "ready", "claimed again", "dead"])
def test_an_ack_removes_the_message_wherever_it_is(broker, place):
    broker.declare("q")
    broker.publish("q", b"x")
    (old,) = broker.claim("q")
    if place != "claimed":
        broker.settle(Settlement.REJECT if place == "dead" else Settlement.REQUEUE, old)
    if place == "claimed again":
        broker.claim("q")
    assert broker.ack("q", old.tag) == 1
    assert broker.ack("q", old.tag) == 0
    assert broker.client.keys("message:*") == []
    broker.check()


def test_one_ack_removes_messages_from_several_places(broker):
    broker.declare("q")
    broker.publish("q", b"x", b"y", b"z")
    ready, dead, claimed = broker.claim("q")
    broker.settle(Settlement.REQUEUE, ready)
    broker.settle(Settlement.REJECT, dead)
    assert broker.ack("q", claimed.tag, ready.tag, dead.tag) == 3
    broker.check()


def test_only_the_newest_dead_letters_are_kept_and_the_others_are_counted(broker):
    broker.declare("q")
    broker.publish("q", *(b"%d" % number for number in range(DEAD_MAX + 3)))
    for message in broker.claim("q"):
        broker.settle(Settlement.REJECT, message)
    assert broker.client.zcard("dead:{q}") == DEAD_MAX
    assert broker.client.hmget("meta:{q}", "dead_lettered", "dead_evicted") == [b"%d" % (DEAD_MAX + 3), b"3"]
    broker.check()


def test_a_thousand_are_settled_in_bounded_calls(broker):
    broker.declare("q")
    broker.publish("q", *[b"x"] * 1000)
    messages = broker.claim("q", credit=500) + broker.claim("q", credit=500)
    for settlement in (Settlement.REQUEUE, Settlement.ACK):
        broker.client.config_resetstat()
        broker.settle(settlement, *messages)
        assert broker.client.info("commandstats")["cmdstat_evalsha"]["calls"] == 4
        if settlement is Settlement.REQUEUE:
            assert broker.queues.sizes("q").ready == 1000
            messages = broker.claim("q", credit=500) + broker.claim("q", credit=500)
    assert broker.client.keys("message:*") == []


def test_posted_settlements_arrive_in_order_and_are_confirmed(broker):
    broker.declare("q")
    broker.publish("q", *[b"x"] * 50)
    claimed = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    for message in claimed:
        broker.acknowledger.post(broker.unacked_messages.begin_settling(message.tag, Settlement.ACK), Settlement.ACK)
    assert len(broker.unacked_messages) == 50
    assert broker.queues.sizes("q").unacked == 0
    assert len(broker.unacked_messages) == 0
    assert not broker.unacked_messages.waiting


def test_sent_settlements_of_a_lost_connection_are_left_to_maintenance(broker):
    broker.declare("q")
    broker.publish("q", *[b"x"] * 3)
    claimed = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    broker.client.client_pause(1000, all=True)
    for message in claimed:
        broker.acknowledger.post(broker.unacked_messages.begin_settling(message.tag, Settlement.ACK), Settlement.ACK)
    broker.commands.abort()
    broker.client.client_unpause()
    orders = broker.unacked_messages.take_deferred()
    assert [held.tag for held in orders] == [message.tag for message in claimed]
    assert all(order.settlement is Settlement.ACK for order in orders)


def test_a_settlement_never_opens_a_lost_connection_anew(broker, monkeypatch):
    """Nobody would read its reply there: a refusal (the server loads its data) left a message that was held for ever."""
    monkeypatch.setattr(acks, "LOCK_WAIT_S", 10)
    broker.declare("q")
    broker.publish("q", b"x")
    (message,) = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    held = broker.unacked_messages.begin_settling(message.tag, Settlement.ACK)
    with broker.commands.lock:
        # It waits for the connection, which breaks meanwhile.
        thread = threading.Thread(target=broker.acknowledger.post, args=(held, Settlement.ACK))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        broker.commands.abort()
    thread.join(10)
    assert not broker.commands.connected
    assert broker.unacked_messages.take_deferred() == [held]


@pytest.mark.parametrize("arguments", [{}, {"x-event-log": True}], ids=["plain", "with events"])
def test_the_work_waits_for_an_early_ack_while_another_thread_waits_for_the_server(arguments, broker):
    broker.declare("q", arguments=arguments)
    broker.publish("q", b"x")
    (message,) = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    held = broker.unacked_messages.begin_settling(message.tag, Settlement.ACK)
    with broker.commands.lock:
        work = threading.Thread(target=broker.acknowledger.ack_before_work, args=(held,))
        work.start()
        work.join(3 * acks.LOCK_WAIT_S)
        assert work.is_alive()
    work.join(10)
    broker.commands.command("PING")
    assert broker.unacked_messages.take_deferred() == []
    assert not broker.client.keys("message:{q}:*")


@pytest.mark.parametrize("how", ["settle", "ack_before_work"])
def test_the_end_of_a_message_of_a_queue_with_max_unacked_wakes_a_consumer(broker, how):
    broker.declare("q")
    broker.publish("q", b"x", b"waits")
    (message,) = broker.unacked_messages.add(broker.claim("q", credit=1), "session", clock.now_s())
    broker.unacked_messages.limited.add("q")
    held = broker.unacked_messages.begin_settling(message.tag, Settlement.ACK)
    broker.client.delete("wakeup:{q}")
    if how == "settle":
        broker.acknowledger.settle([held], Settlement.ACK)
    else:
        broker.acknowledger.ack_before_work(held)
        broker.commands.command("PING")
    assert broker.client.exists("wakeup:{q}")


def moves_on(broker, tag):
    broker.client.zrem("messages_index:{q}", tag)
    broker.client.zadd("delayed:{q}", {tag: 1})


UNCONFIRMED = {
    "it stands elsewhere": moves_on,
    "the server refuses": lambda broker, _: broker.client.set("messages_index:{q}", "foreign"),
    "the connection is lost": lambda broker, _: None,
}


@pytest.mark.parametrize("how", UNCONFIRMED)
def test_an_early_ack_that_the_server_has_not_confirmed_is_sent_again(broker, how):
    """Else another worker would do what is done already."""
    broker.declare("q")
    broker.publish("q", b"x")
    (message,) = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    held = broker.unacked_messages.begin_settling(message.tag, Settlement.ACK)
    UNCONFIRMED[how](broker, message.tag)
    broker.acknowledger.ack_before_work(held)
    if how == "the connection is lost":
        broker.commands.abort()
    else:
        # Its reply comes behind those of the ack.
        broker.commands.command("PING")
    assert broker.unacked_messages.take_deferred() == [held]
    assert broker.unacked_messages.find(message.tag) is held


@pytest.fixture
def settling_message(broker):
    broker.declare("q")
    broker.publish("q", b"x")
    (message,) = broker.unacked_messages.add(broker.claim("q"), "session", clock.now_s())
    return broker.unacked_messages.begin_settling(message.tag, Settlement.ACK)


def test_a_settlement_whose_connection_is_busy_for_long_is_left_to_maintenance(broker, settling_message):
    """Another thread may wait there for the server's disk."""
    told = []
    broker.unacked_messages.on_work = lambda: told.append(True)
    thread = threading.Thread(target=broker.acknowledger.post, args=(settling_message, Settlement.ACK))
    with broker.commands.lock:
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    assert told
    assert broker.unacked_messages.take_deferred() == [settling_message]


def hand_back_page(broker, page, *known):
    keys = broker.keys.queue("q")
    return broker.commands.call(
        script("release_session"),
        [keys.ready, keys.index, keys.message, keys.wakeup, keys.expiry, keys.schedule_wakeup, keys.meta, keys.delayed],
        "holder",
        page,
        100,
        *known,
    )


def test_a_message_that_dies_towards_an_exchange_wakes_the_sweeper(broker):
    broker.declare("q", arguments={"x-dead-letter-exchange": "graves"})
    broker.publish("q", b"bad")
    wakeup = broker.keys.queue("q").schedule_wakeup
    broker.client.delete(wakeup)
    broker.settle(Settlement.REJECT, *broker.claim("q"))
    assert broker.client.exists(wakeup)


def test_what_a_broken_session_claims_at_its_last_moment_goes_back_as_well(broker, monkeypatch):
    stepped = ProcessClock()
    monkeypatch.setattr(clock, "now_s", stepped)
    broker.declare("q")
    broker.publish("q", b"x")
    recovery = ReconnectRecovery(broker.commands, broker.keys, broker.unacked_messages, broker.acknowledger)
    broker.unacked_messages.abandon("holder", ["q"])
    recovery.run()
    # The server comes to it only now.
    assert broker.bodies("q") == [b"x"]
    stepped.advance(SESSION_RECHECK_S - 1)
    recovery.run()
    assert broker.queues.sizes("q").unacked == 1
    stepped.advance(2)
    assert recovery.next_run_at <= stepped.now_s
    recovery.run()
    assert broker.queues.sizes("q").ready == 1


def test_a_queue_that_refuses_what_a_broken_session_held_is_tried_until_it_takes_it(broker, monkeypatch):
    stepped = ProcessClock()
    monkeypatch.setattr(clock, "now_s", stepped)
    broker.declare("q")
    broker.publish("q", b"x")
    broker.claim("q")
    broker.client.set("queue:{q}", "foreign")
    recovery = ReconnectRecovery(broker.commands, broker.keys, broker.unacked_messages, broker.acknowledger)
    broker.unacked_messages.abandon("holder", ["q"])
    for _ in range(3):
        recovery.run()
        stepped.advance(max(REFUSED_AGAIN_S, SESSION_RECHECK_S))
    broker.client.delete("queue:{q}")
    recovery.run()
    assert broker.bodies("q") == [b"x"]


def test_a_session_is_released_in_pages_without_what_the_process_holds(broker):
    broker.declare("q")
    broker.publish("q", *[b"x"] * 1200)
    messages = [message for _ in range(3) for message in broker.claim("q", credit=400)]
    known = [message.tag for message in messages[::3]]
    broker.client.delete("wakeup:{q}")
    page, total = None, 0
    while page != b"":
        returned, page = hand_back_page(broker, page or "", *known)
        total += returned
    assert total == 800
    assert broker.client.exists("wakeup:{q}")
    assert broker.queues.sizes("q").unacked == 400
    assert broker.bodies("q", credit=500) == [b"x"] * 500
    broker.check()


def test_heartbeats_between_two_pages_make_no_message_stay_behind(broker):
    broker.declare("q")
    broker.publish("q", *[b"x"] * 300)
    index = broker.keys.queue("q").index
    messages = broker.claim("q", credit=300)
    broker.client.zadd(index, {message.tag: 1000 + at for at, message in enumerate(messages)})
    known = [message.tag for message in messages[:150]]
    page, total = None, 0
    while page != b"":
        returned, page = hand_back_page(broker, page or "", *known)
        total += returned
        # What the process holds moves behind the rest, by its heartbeat.
        broker.client.zadd(index, dict.fromkeys(known, 10_000), xx=True)
    assert total == 150


def test_a_page_ends_within_messages_of_one_deadline(broker):
    """A claim gives all that it takes one deadline, and so does a heartbeat."""
    broker.declare("q")
    broker.publish("q", *[b"x"] * 250)
    messages = broker.claim("q", credit=250)
    broker.client.zadd(broker.keys.queue("q").index, {message.tag: 1000 for message in messages})
    first, place = hand_back_page(broker, "")
    second, place = hand_back_page(broker, place)
    assert (first, second, hand_back_page(broker, place)) == (100, 100, [50, b""])


def test_a_page_goes_on_where_one_ended_whose_messages_stay(broker):
    broker.declare("q")
    broker.publish("q", *[b"x"] * 250)
    messages = broker.claim("q", credit=250)
    broker.client.zadd(broker.keys.queue("q").index, {message.tag: 1000 for message in messages})
    known = sorted(message.tag for message in messages)[:120]
    returned, place = hand_back_page(broker, "", *known)
    assert (returned, hand_back_page(broker, place, *known)[0]) == (0, 80)
