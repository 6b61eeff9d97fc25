"""`celery-redis-plus messages` on a real server."""

from __future__ import annotations

import functools
import os
import re
import socket
from datetime import UTC, datetime, timedelta

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.queues import listing, message_search
from celery_redis_plus.errors import InvalidArgument, InvalidEta
from celery_redis_plus.keys import Keys
from tests.support.filling import fill
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


@pytest.fixture
def shop(channel):
    """Queue `q`: three ready messages of two tasks, a delayed one; queue `other`."""
    declare(channel, "q", "other")
    for number, task in enumerate(("shop.pay", "shop.mail", "shop.pay")):
        publish(channel, "q", f"body {number}", headers={"task": task, "id": f"task-{number}"}, priority=9 - number)
    publish(channel, "q", "later", headers={"task": "shop.pay", "id": "task-later", "x-delay": 3_600_000})
    return channel


def ids(cli, *arguments):
    return [one["id"] for one in cli("messages", "list", "q", "--json", *arguments).lines]


def test_ready_messages_are_listed_in_their_order(cli, shop):
    found = cli("messages", "list", "q", "--json").lines
    assert [(one["task"], one["task_id"], one["priority"]) for one in found] == [
        ("shop.pay", "task-0", 9),
        ("shop.mail", "task-1", 8),
        ("shop.pay", "task-2", 7),
    ]
    assert all(one["state"] == "ready" and one["deliveries"] == 0 and one["bytes"] > 0 for one in found)
    assert abs(datetime.fromisoformat(found[0]["since"]) - datetime.now(UTC)) < timedelta(minutes=1)
    printed = cli("messages", "list", "q", "--limit", "2").out.splitlines()
    assert printed[0].split()[:2] == ["ID", "SINCE"]
    assert [line.split()[0] for line in printed[1:3]] == [one["id"] for one in found[:2]]
    assert printed[-1] == "2 of 3 ready messages of queue 'q'"


def test_messages_of_a_task_are_found_over_pages(cli, shop, monkeypatch):
    monkeypatch.setattr(listing, "LISTING_PAGE", 2)
    publish(shop, "q", *range(9), headers={"task": "other.thing"})
    assert [one["task_id"] for one in cli("messages", "list", "q", "--json", "--task", "shop.pay").lines] == ["task-0", "task-2"]
    assert len(ids(cli, "--task", "other.*")) == 9


def test_a_queue_whose_messages_age_lists_the_time_at_which_each_became_ready(cli, channel):
    declare(channel, "q", arguments={"x-priority-ageing": 60_000})
    publish(channel, "q", "x", priority=3)
    (one,) = cli("messages", "list", "q", "--json").lines
    assert abs(datetime.fromisoformat(one["since"]) - datetime.now(UTC)) < timedelta(minutes=1)


def test_delayed_and_unacked_messages_are_listed_with_their_times(cli, shop, connect):
    (delayed,) = cli("messages", "list", "q", "--state", "delayed", "--json").lines
    assert datetime.fromisoformat(delayed["due"]) - datetime.now(UTC) > timedelta(minutes=50)
    inbox = Inbox(connect().channel(), kombu.Queue("q", no_declare=True), ack=False, prefetch=1)
    inbox.drain(1)
    (held,) = cli("messages", "list", "q", "--state", "unacked", "--json").lines
    assert held["holder"]
    assert held["lease_ends"]
    assert (held["task_id"], held["deliveries"]) == ("task-0", 1)
    printed = cli("messages", "list", "q", "--state", "dead")
    assert printed.status == 2
    assert "'dead' is not one of 'ready', 'delayed', 'unacked'" in printed.err
    assert cli("messages", "list", "nothing").status == 1


def test_a_message_is_shown_by_its_id_and_by_its_task_id(cli, shop):
    first = ids(cli)[0]
    shown = cli("messages", "show", first, "--json").json
    assert (shown["state"], shown["position"], shown["body"], shown["queue"]) == ("PENDING", 0, "body 0", "q")
    assert shown["headers"]["id"] == "task-0"
    assert cli("messages", "show", "task-later", "--json").json["state"] == "DELAYED"
    printed = cli("messages", "show", first).out.splitlines()
    assert any(line.split() == ["body", "body", "0"] for line in printed)
    assert any(line.split()[:2] == ["headers.task", "shop.pay"] for line in printed)
    missing = cli("messages", "show", "nobody")
    assert missing.status == 1
    assert missing.err == (
        "celery-redis-plus messages show: message nobody is in no queue: 2 queues were searched, 4 messages that are delayed or "
        "ready or unacked or dead; finished ones are known with event_log_index\n"
    )
    other = f"{first[:-1]}{'y' if first.endswith('x') else 'x'}"
    gone = cli("messages", "show", other, "--queue", "q")
    assert gone.err.endswith("is not in queue 'q': 1 queue was asked for it, and for the last events\n")


def test_a_task_id_is_found_in_every_state_without_an_index(cli, shop, connect):
    assert cli("messages", "show", "task-2", "--json").json["state"] == "PENDING"
    assert cli("messages", "show", "task-2", "--queue", "q", "--json").json["position"] == 2
    inbox = Inbox(connect().channel(), kombu.Queue("q", no_declare=True), ack=False, prefetch=2)
    inbox.drain(2)
    assert cli("messages", "show", "task-0", "--json").json["state"] == "PROCESSING"
    inbox.messages[0].reject()
    wait_until(lambda: cli("messages", "show", "task-0", "--json").json["state"] == "DEAD")
    held = cli("messages", "cancel", "task-1", "--yes")
    assert held.status == 1
    assert re.search(rf"task-1 is PROCESSING in queue 'q', \S+:{os.getpid()} has it since .* UTC: nothing was done$", held.err)
    assert cli("messages", "cancel", "task-1", "--dry-run", "--json").json == {"cancelled": 0, "dry_run": True}
    assert cli("messages", "reschedule", "task-2", "--in", "1h").status == 0
    assert cli("messages", "show", "task-2", "--json").json["state"] == "DELAYED"


def test_a_ready_task_is_cancelled_and_moved_by_its_id(cli, shop, channel):
    declare(channel, "other")
    assert cli("messages", "cancel", "task-0", "--yes").out == "1 message(s) are cancelled\n"
    assert cli("messages", "move", "task-1", "--to", "other").status == 0
    assert cli("messages", "show", "task-1", "--json").json["queue"] == "other"
    assert cli("messages", "show", "task-0").status == 1


def test_a_search_that_does_not_look_at_all_messages_says_so(cli, shop, broker_url, monkeypatch):
    monkeypatch.setattr(message_search, "MAX_SEARCHED", 0)
    with BrokerAdmin(broker_url) as admin:
        told = "task nobody was not found among 1 messages, and there are more; name its queue"
        for act in (admin.messages.find, admin.messages.cancel):
            with pytest.raises(InvalidArgument, match=told):
                act("nobody")
        assert admin.messages.find("nobody", "q") is None
    assert "4 messages that are delayed or" in cli("messages", "show", "nobody").err


@pytest.fixture
def working(shop, connect):
    """A consumer that holds `task-0` and `task-1`."""
    inbox = Inbox(connect().channel(), kombu.Queue("q", no_declare=True), ack=False, prefetch=2)
    inbox.drain(2)
    return inbox


def test_an_unacked_message_tells_since_when_which_process_has_it(cli, working):
    began = datetime.now(UTC)
    for known in (
        cli("messages", "list", "q", "--state", "unacked", "--json").lines[0],
        cli("messages", "show", "task-0", "--json").json,
    ):
        assert (known["host"], known["pid"], known["deliveries"]) == (socket.gethostname(), os.getpid(), 1)
        assert abs(datetime.fromisoformat(known["since"]) - began) < timedelta(minutes=1)
    head, line, *_ = cli("messages", "list", "q", "--state", "unacked").out.splitlines()
    assert head.split()[1] == "CLAIMED"
    assert line.endswith(f"{socket.gethostname()}:{os.getpid()}")


def test_a_message_is_taken_from_its_consumer(cli, working, redis_client):
    assert "may then run twice" in cli("messages", "kick", "task-0").err
    assert cli("messages", "kick", "task-0", "--dry-run", "--json").json == {"kicked": 1, "dry_run": True}
    assert cli("messages", "show", "task-0", "--json").json["state"] == "PROCESSING"
    working.cancel()
    assert cli("messages", "kick", "task-0", "--yes").out == "1 message(s) are back in their queues\n"
    back = cli("messages", "show", "task-0", "--json").json
    assert (back["state"], back["failures"], back["deliveries"], back["host"]) == ("PENDING", 0, 1, None)
    again = cli("messages", "kick", "task-0", "task-2", "--yes")
    assert (again.status, again.err.count("is PENDING in queue 'q': nothing was done")) == (1, 2)
    # The consumer had it when it was taken away: its ack tells that the work is done.
    working.messages[0].ack()
    wait_until(lambda: working.pump(0.01) or cli("messages", "show", "task-0").status == 1)


def test_all_that_a_consumer_holds_is_taken_from_it(cli, working, connect):
    (consumer,) = cli("consumers", "q", "--json").lines
    assert cli("messages", "kick", "--consumer", consumer["id"], "--yes").status == 2
    arguments = ("messages", "kick", "--consumer", consumer["id"], "--queue", "q")
    assert cli(*arguments, "--dry-run").out == "2 message(s) would be back in their queues\n"
    working.cancel()
    assert cli(*arguments, "--yes", "--json").json == {"kicked": 2, "dry_run": False}
    assert [one["task_id"] for one in cli("messages", "list", "q", "--json").lines] == ["task-0", "task-1", "task-2"]
    assert cli("messages", "kick", "--consumer", "nobody.1", "--queue", "q", "--yes", "--json").json["kicked"] == 0
    assert cli("check").status == 0


def test_a_message_that_another_consumer_has_by_then_is_not_taken_from_it(channel, broker_url, connect):
    first = Inbox(connect().channel(), "q", ack=False, prefetch=1)
    publish(channel, "q", "x")
    first.drain(1)
    with BrokerAdmin(broker_url) as admin:
        (consumer,) = admin.consumers("q")
        ((_, tags),) = admin.held_tags("q", consumer.id)
        first.cancel()
        first.messages[0].requeue()
        second = Inbox(connect().channel(), "q", ack=False, prefetch=1)
        second.drain(1)
        assert admin.give_back("q", tags, consumer=consumer.id) == []
        assert admin.overview_of("q").unacked == 1


def test_a_kick_is_an_event_of_its_own(cli, connect):
    channel = connect(event_log=True, event_log_index=True).channel()
    declare(channel, "logged")
    publish(channel, "logged", "x", headers={"task": "shop.pay", "id": "task-9"})
    inbox = Inbox(channel, kombu.Queue("logged", no_declare=True), ack=False, prefetch=1)
    inbox.drain(1)
    assert cli("messages", "kick", "task-9", "--yes").status == 0
    events = cli("messages", "show", "task-9", "--json").json["events"]
    assert [(one["event"], one["reason"]) for one in events[-2:]] == [("claimed", None), ("requeued", "kicked")]


@pytest.mark.parametrize("place", ["ready", "delayed", "index", "dead"])
def test_a_task_is_found_among_many_by_the_server(cli, shop, redis_client, broker_url, place, monkeypatch):
    monkeypatch.setattr(listing, "SEARCHED_A_CALL", 100)
    of = Keys("").queue("q")
    tags = redis_client.zrange(of.ready, 0, -1)
    if place != "ready":
        redis_client.rename(of.ready, of.expiry)
        redis_client.delete(getattr(of, place))
        redis_client.rename(of.expiry, getattr(of, place))
    fill(redis_client, of, getattr(of, place), 2_000)
    wanted = redis_client.zrange(getattr(of, place), 1_234, 1_234)[0]
    envelope = redis_client.hget(of.message + wanted, "payload")
    redis_client.hset(of.message + wanted, "payload", re.sub(rb'"task-\d"', b'"task-4711"', envelope))
    looked_at = []
    with BrokerAdmin(broker_url) as admin:
        admin.messages.watch = looked_at.append
        found = admin.messages.find("task-4711")
    assert (found.id, found.task_id, found.position or 1_234) == (wanted.decode(), "task-4711", 1_234)
    assert max(looked_at) == 100
    assert tags


def test_messages_are_cancelled_by_id(cli, shop):
    first, second, _ = ids(cli)
    assert "confirm with --yes" in cli("messages", "cancel", first).err
    assert cli("messages", "cancel", first, "--dry-run", "--json").json == {"cancelled": 1, "dry_run": True}
    assert cli("messages", "cancel", first, "--yes").out == "1 message(s) are cancelled\n"
    assert cli("messages", "cancel", second, "task-later", "--dead-letter").status == 0
    assert cli("messages", "cancel", first, "--yes").status == 1
    left = cli("queues", "q", "--json").json
    assert (left["ready"], left["delayed"], left["dead"]) == (1, 0, 2)


def test_the_waiting_messages_of_a_task_are_cancelled(cli, shop):
    arguments = ("messages", "cancel", "--task", "shop.pay", "--queue", "q")
    assert cli(*arguments, "--dry-run").out == "3 message(s) would be cancelled\n"
    assert cli(*arguments, "--yes", "--json").json == {"cancelled": 3, "dry_run": False}
    assert [one["task"] for one in cli("messages", "list", "q", "--json").lines] == ["shop.mail"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "allowed are either ids, or --task TASK with --queue QUEUE"),
        (("X", "--task", "a"), "allowed are either ids, or --task"),
        (("--task", "a"), "--task 'a' needs the queue to look into"),
    ],
)
def test_what_is_meant_has_to_be_said(cli, arguments, message):
    printed = cli("messages", "cancel", "--yes", *arguments)
    assert printed.status == 2
    assert message in printed.err


def test_messages_are_moved(cli, shop):
    first = ids(cli)[0]
    assert cli("messages", "move", first, "--to", "other").out == "1 message(s) are moved\n"
    assert cli("messages", "move", "--task", "shop.*", "--queue", "q", "--to", "other", "--json").json["moved"] == 3
    found = {one["queue"]: (one["ready"], one["delayed"]) for one in cli("queues", "--json").lines}
    assert found == {"q": (0, 0), "other": (3, 1)}
    assert cli("messages", "move", first, "--to", "nowhere").status == 1
    assert "allowed is another one" in cli("messages", "move", "--task", "a", "--queue", "q", "--to", "q").err


def test_a_message_gets_another_time(cli, shop):
    assert cli("messages", "reschedule", "task-later", "--in", "0").out == "message task-later has its new time\n"
    first = ids(cli)[0]
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    assert cli("messages", "reschedule", first, "--at", when.isoformat(), "--json").json == {"id": first, "rescheduled": True}
    (delayed,) = cli("messages", "list", "q", "--state", "delayed", "--json").lines
    assert (delayed["id"], delayed["due"]) == (first, when.isoformat())
    assert cli("messages", "reschedule", "nobody", "--in", "5m").status == 1
    assert "either --in TIME or --at WHEN" in cli("messages", "reschedule", first).err
    assert "--at 'noon': " in cli("messages", "reschedule", first, "--at", "noon").err


def test_a_new_time_has_a_last_moment(cli, shop, broker_url, redis_client):
    printed = cli("messages", "reschedule", "task-later", "--in", "9999999999999999d")
    assert printed.status == 2
    assert "'--in': '9999999999999999d' is not allowed; allowed: a number with s, m, h or d" in printed.err
    assert "such as 90 or 2h, up to 36525d" in printed.err
    assert "out of range" in cli("messages", "reschedule", "task-later", "--at", "9999-01-01").err
    with BrokerAdmin(broker_url) as admin, pytest.raises(InvalidEta, match="out of range"):
        admin.messages.reschedule("task-later", "+99999999999999")
    assert cli("messages", "reschedule", "task-later", "--in", "36525d").status == 0
    assert cli("check").status == 0


def test_a_stored_time_that_no_calendar_reaches_is_shown_as_the_last_one(cli, shop, redis_client):
    (delayed,) = redis_client.zrange(Keys("").queue("q").delayed, 0, -1)
    redis_client.zadd(Keys("").queue("q").delayed, {delayed: 10**18})
    assert "9999-12-31" in cli("messages", "list", "q", "--state", "delayed").out
    assert cli("messages", "show", delayed.decode(), "--json").json["due"].startswith("9999-12-31")


@pytest.fixture
def small_store(monkeypatch):
    """Queues keep two dead letters."""
    monkeypatch.setattr(BrokerAdmin, "__init__", functools.partialmethod(_with_small_store, BrokerAdmin.__init__))


def _with_small_store(self, init, url, options=None):
    init(self, url, {**(options or {}), "dead_letter_max": 2})


def test_cancelling_to_the_dead_letters_asks_where_older_ones_would_go(cli, shop, small_store):
    arguments = ("messages", "cancel", "--queue", "q", "--task", "shop.pay", "--dead-letter")
    printed = cli(*arguments)
    assert printed.status == 2
    assert "Delete 1 dead letter(s) for good (a queue keeps 2, the youngest, by the option dead_letter_max" in printed.err
    assert "confirm with --yes" in printed.err
    assert cli("queues", "q", "--json").json["dead"] == 0
    assert "1 dead letter(s) would be deleted for good (a queue keeps 2" in cli(*arguments, "--dry-run").out
    assert cli(*arguments, "--yes", "--json").json == {"cancelled": 3, "evicted": 1, "dry_run": False}
    printed = cli("messages", "cancel", ids(cli)[0], "--dead-letter")
    assert (printed.status, "Delete 1 dead letter(s) for good" in printed.err) == (2, True)
    printed = cli("messages", "cancel", ids(cli)[0], "--dead-letter", "--yes")
    assert printed.out.splitlines()[0] == "1 message(s) are cancelled"
    assert printed.out.splitlines()[1].startswith("1 dead letter(s) are deleted for good (a queue keeps 2")
    assert cli("queues", "q", "--json").json["dead"] == 2


def test_cancelling_to_the_dead_letters_does_not_ask_where_there_is_room(cli, shop):
    printed = cli("messages", "cancel", "--queue", "q", "--task", "shop.pay", "--dead-letter")
    assert (printed.status, printed.out) == (0, "3 message(s) are cancelled\n")


def test_a_transient_queue_has_no_dead_letters_so_cancelling_to_them_asks(cli, channel):
    kombu.Queue("short", auto_delete=True)(channel).declare()
    publish(channel, "short", 1, 2, headers={"task": "t"})
    printed = cli("messages", "cancel", "--queue", "short", "--task", "t", "--dead-letter")
    assert (printed.status, "Delete 2 dead letter(s) for good" in printed.err) == (2, True)
    assert cli("queues", "short", "--json").json["ready"] == 2


@pytest.mark.parametrize("arguments", [{}, {"x-priority-ageing": 60_000}, {"x-max-priority": 10}])
def test_a_message_with_another_priority_is_delivered_in_its_turn(cli, channel, arguments):
    declare(channel, "q", arguments=arguments)
    for number in range(4):
        publish(channel, "q", number, headers={"task": "t", "id": f"task-{number}"}, priority=5)
    publish(channel, "q", 4, headers={"task": "t", "id": "task-4", "x-delay": 3_600_000}, priority=5)
    assert cli("messages", "prioritize", "task-2", "10") == (0, "message task-2 has priority 10\n", "")
    assert cli("messages", "prioritize", "task-0", "1", "--queue", "q", "--json").json == {"id": "task-0", "priority": 1}
    assert cli("messages", "prioritize", "task-4", "9").status == 0
    found = cli("messages", "list", "q", "--json").lines
    assert [(one["task_id"], one["priority"]) for one in found] == [("task-2", 10), ("task-1", 5), ("task-3", 5), ("task-0", 1)]
    assert cli("messages", "show", "task-2", "--json").json["priority"] == 10
    assert cli("messages", "reschedule", "task-4", "--in", "0").status == 0
    assert cli("check").status == 0
    queue = kombu.Queue("q", durable=True, queue_arguments=arguments)
    assert Inbox(channel, queue).exactly(5) == [2, 4, 1, 3, 0]
    with BrokerAdmin(channel.connection.client.as_uri(include_password=True)) as admin:
        assert {one.action for one in admin.audit.entries()} == {"prioritize", "reschedule"}


def test_the_order_of_priorities_is_that_of_the_app(cli, connect, broker_url):
    channel = connect(priority_order="low-first").channel()
    declare(channel, "q")
    publish(channel, "q", "a", "b", headers={"task": "t"}, priority=5)
    with BrokerAdmin(broker_url, {"priority_order": "low-first"}) as admin:
        second = list(admin.list_messages("q", "ready"))[1].tag
        assert admin.messages.prioritize(second, 1)
    assert Inbox(channel, "q").exactly(2) == ["b", "a"]


def test_a_message_that_a_consumer_has_keeps_its_priority(cli, shop):
    inbox = Inbox(shop, "q", ack=False, prefetch=1)
    inbox.drain(1)
    refused = cli("messages", "prioritize", "task-0", "3")
    assert refused.status == 1
    assert "is PROCESSING in queue 'q'" in refused.err
