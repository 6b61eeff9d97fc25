"""`celery-redis-plus queues` and `purge` on a real server."""

from __future__ import annotations

import json
import os
import signal

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import QueueFull, QueueNotFound
from tests.support.inbox import Inbox, declare, publish
from tests.support.program import forked
from tests.support.waiting import wait_until


@pytest.fixture
def busy(channel, connect):
    """Queue `q` with a message of each state and a consumer that holds one; queue `idle` with none."""
    declare(channel, "idle")
    inbox = Inbox(connect().channel(), "q", ack=False, prefetch=2)
    publish(channel, "q", "dies", "held")
    inbox.drain(2)
    inbox.messages[0].reject()
    publish(channel, "q", "later", headers={"x-delay": 3_600_000})
    inbox.consumer.qos(prefetch_count=1)
    publish(channel, "q", "waits", priority=3)
    publish(channel, "q", "waits", priority=7)
    return inbox


def test_queues_tells_what_is_in_each_queue_and_since_when(cli, busy):
    found = {one["queue"]: one for one in cli("queues", "--json").lines}

    assert set(found) == {"idle", "q"}
    q = found["q"]
    counts = {name: q[name] for name in ("ready", "delayed", "unacked", "dead", "consumers", "published", "delivered")}
    assert counts == {"ready": 2, "delayed": 1, "unacked": 1, "dead": 1, "consumers": 1, "published": 5, "delivered": 2}
    assert 0 <= q["oldest_s"] < 60
    assert (q["paused"], q["paused_until"]) == (None, None)
    idle = found["idle"]
    assert (idle["ready"], idle["oldest_s"], idle["consumers"]) == (0, None, 0)


def test_the_oldest_is_that_of_all_priorities(channel, broker_url, redis_client):
    declare(channel, "q")
    for priority in (0, 5, 9):
        publish(channel, "q", "x", priority=priority)
    ready = channel.session.keys.queue("q").ready
    oldest, *_ = redis_client.zrange(ready, 1, 1)
    redis_client.zincrby(ready, -90_000, oldest)
    with BrokerAdmin(broker_url) as admin:
        assert 90 <= admin.overview_of("q").oldest_s < 120


def test_the_oldest_of_a_queue_whose_messages_age_is_the_next(channel, broker_url):
    declare(channel, "q", arguments={"x-priority-ageing": 60_000})
    publish(channel, "q", "x", priority=1)
    with BrokerAdmin(broker_url) as admin:
        assert 0 <= admin.overview_of("q").oldest_s < 60


def test_the_table_names_the_pause_and_its_end(cli, busy):
    assert cli("pause", "q", "--reason", "the database moves", "--for", "1h").status == 0
    head, q, idle = (line.split() for line in cli("queues").out.splitlines())
    assert head == ["QUEUE", "READY", "DELAYED", "UNACKED", "DEAD", "CONSUMERS", "OLDEST", "FULL", "PAUSED"]
    assert idle == ["idle", "0", "0", "0", "0", "0", "-", "-", "-"]
    assert q[:6] == ["q", "2", "1", "1", "1", "1"]
    assert " ".join(q[9:]).startswith("the database moves (until ")
    assert cli("queues", "q", "--json").json["paused"] == "the database moves"
    assert cli("resume", "q", "--json").json == {"queue": "q", "was_paused": True}
    assert cli("queues", "q", "--json").json["paused"] is None


def test_queues_are_chosen_by_name_or_pattern(cli, channel):
    declare(channel, "shop.mail", "shop.pay", "other")
    assert [one["queue"] for one in cli("queues", "--json", "shop.*").lines] == ["shop.mail", "shop.pay"]
    assert [one["queue"] for one in cli("queues", "--json", "other", "shop.pay").lines] == ["other", "shop.pay"]
    assert cli("queues", "--json", "none.*").lines == []
    printed = cli("queues", "nothing")
    assert (printed.status, printed.err) == (1, "celery-redis-plus queues: there is no queue 'nothing'\n")


@pytest.fixture
def limited(channel):
    """Queue `tiny` that is full and refuses publishes, and `roomy` with one of 10 messages."""
    declare(channel, "tiny", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    declare(channel, "roomy", arguments={"x-max-length": 10, "x-max-unacked": 1})
    publish(channel, "tiny", 1, 2, 3)
    publish(channel, "roomy", 1)
    with pytest.raises(QueueFull):
        publish(channel, "tiny", 4)
    return channel


def test_queues_show_their_arguments_and_how_full_they_are(cli, limited):
    found = {one["queue"]: one for one in cli("queues", "--json").lines}
    assert found["tiny"]["arguments"] == {"durable": True, "x-max-length": 3, "x-overflow": "reject-publish"}
    assert (found["tiny"]["full"], found["tiny"]["rejected"]) == (1.0, 1)
    assert found["tiny"]["limits"] == [{"name": "x-max-length", "used": 3, "most": 3}]
    assert found["roomy"]["full"] == 0.1
    assert {use["name"]: use["used"] for use in found["roomy"]["limits"]} == {"x-max-length": 1, "x-max-unacked": 0}
    lines = cli("queues").out.splitlines()
    assert ["100%" in lines[1], "10%" in lines[2]] == [True, True]


def test_the_worst_queue_is_first_and_the_first_ones_may_be_chosen(cli, limited, connect):
    declare(limited, "paused", "empty")
    assert [one["queue"] for one in cli("queues", "--json").lines] == ["tiny", "roomy", "empty", "paused"]
    assert [one["queue"] for one in cli("queues", "--json", "--sort", "name").lines] == ["empty", "paused", "roomy", "tiny"]
    assert [one["queue"] for one in cli("queues", "--json", "--sort", "ready", "--limit", "1").lines] == ["tiny"]
    assert cli("queues", "--limit", "2").out.splitlines()[-1] == "2 of 4 queues"


def test_queues_that_celery_has_for_itself_are_hidden_unless_asked_for(cli, channel):
    own = ["celeryev.0b6e", "w1@host.celery.pidbox", "0b6e.reply.celery.pidbox"]
    declare(channel, "q", *own)
    assert [one["queue"] for one in cli("queues", "--json").lines] == ["q"]
    assert {one["queue"] for one in cli("queues", "--json", "--internal").lines} == {"q", *own}
    assert [one["queue"] for one in cli("queues", "--json", own[0]).lines] == own[:1]
    assert [one["queue"] for one in cli("queues", "--json", "*").lines] == ["q"]


def test_one_queue_is_shown_with_its_bindings_and_consumers(cli, channel, connect):
    entity = kombu.Queue("q", kombu.Exchange("shop", "topic"), "pay.*", durable=True, queue_arguments={"x-max-length": 7})
    inbox = Inbox(connect().channel(), entity, ack=False, prefetch=1)
    publish(channel, "q", "held")
    inbox.drain(1)
    cli("pause", "q", "--reason", "the database moves")
    shown = cli("queue", "q", "--json").json
    assert shown["bindings"] == [{"exchange": "shop", "routing_key": "pay.*", "arguments": {}}]
    assert [(one["pid"], one["held"]) for one in shown["consumers"]] == [(os.getpid(), 1)]
    assert (shown["arguments"]["x-max-length"], shown["unacked"], bool(shown["paused_by"])) == (7, 1, True)
    printed = cli("queue", "q").out
    for line in ("binding             exchange 'shop', routing key 'pay.*'", "x-max-length used   0 of 7 (0%)"):
        assert " ".join(line.split()) in " ".join(printed.split())
    assert "the database moves (until it is resumed by " in printed
    assert cli("queue", "nothing").status == 1


def test_queues_are_paused_resumed_and_purged_by_patterns(cli, channel):
    declare(channel, "shop.a", "shop.b", "other", "shop.pidbox")
    for queue in ("shop.a", "shop.b", "other"):
        publish(channel, queue, 1, 2)
    assert [one["queue"] for one in cli("pause", "shop.*", "--reason", "tests", "--json").lines] == ["shop.a", "shop.b"]
    assert cli("resume", "shop.*", "other").out.splitlines() == [
        "queue 'shop.a' goes on", "queue 'shop.b' goes on", "queue 'other' was not paused",
    ]  # fmt: skip
    assert "Delete 4 waiting messages of 2 queues ('shop.a', 'shop.b')?" in cli("purge", "shop.*").err
    assert [one["purged"] for one in cli("purge", "shop.*", "--yes", "--json").lines] == [2, 2]
    assert cli("queues", "other", "--json").json["ready"] == 2
    for command in (["pause", "--reason", "x"], ["resume"], ["purge", "--yes"]):
        printed = cli(*command, "none.*")
        assert (printed.status, "no queue has a name that matches 'none.*'" in printed.err) == (1, True)


def test_dead_letters_of_queues_are_replayed_by_a_pattern(cli, channel, connect):
    for queue in ("shop.a", "shop.b"):
        inbox = Inbox(connect().channel(), queue, ack=False)
        publish(channel, queue, "dies")
        inbox.drain(1)
        inbox.messages[0].reject()
        inbox.cancel()
        wait_until(lambda queue=queue: cli("queues", queue, "--json").json["dead"] == 1)
    assert [one["replayed"] for one in cli("dead-letters", "replay", "shop.*", "--all", "--json").lines] == [1, 1]
    assert [one["ready"] for one in cli("queues", "--json", "shop.*").lines] == [1, 1]


def test_the_prefix_of_an_app_s_keys_is_an_option(cli, connect):
    declare(connect(global_keyprefix="shop:").channel(), "q")
    assert cli("queues", "--json").lines == []
    assert [one["queue"] for one in cli("--prefix", "shop:", "queues", "--json").lines] == ["q"]


def test_watch_shows_rates_until_ctrl_c(broker_url, channel):
    declare(channel, "q")
    with forked("celery_redis_plus", "queues", "--watch", "--interval", "0.1", "--json", "--broker", broker_url) as process:
        first = json.loads(process.stdout.readline())
        publish(channel, "q", "x")
        while True:
            later = json.loads(process.stdout.readline())
            if later["in_rate"]:
                break
        os.kill(process.pid, signal.SIGINT)
        assert (process.wait(20), process.stderr.read()) == (0, "")
    assert (first["in_rate"], first["ready"], later["ready"]) == (None, 0, 1)
    assert first["time"] < later["time"]


def test_purge_removes_what_waits_and_nothing_else(cli, busy):
    assert cli("purge", "q", "--dry-run", "--json").json == {"queue": "q", "found": 3, "purged": 0, "dry_run": True}
    assert cli("purge", "q", "--dry-run").out == "3 message(s) of queue 'q' would be deleted\n"
    assert cli("purge", "q", "--yes").out == "3 message(s) of queue 'q' are deleted\n"
    left = cli("queues", "q", "--json").json
    assert {name: left[name] for name in ("ready", "delayed", "unacked", "dead")} == {
        "ready": 0, "delayed": 0, "unacked": 1, "dead": 1,
    }  # fmt: skip


def test_purge_asks_first(cli, busy, monkeypatch):
    printed = cli("purge", "q")
    assert printed.status == 2
    assert "Delete 3 waiting messages of queue 'q'? There is no terminal to ask on: confirm with --yes" in printed.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    assert cli("purge", "q").status == 1
    assert cli("queues", "q", "--json").json["ready"] == 2
    assert cli("purge", "nothing", "--yes").status == 1


def test_consumers_of_all_queues_are_listed(cli, busy, channel):
    (one,) = cli("consumers", "--json").lines
    assert (one["queue"], one["pid"], one["held"], one["active"]) == ("q", os.getpid(), 1, False)
    assert cli("consumers", "--json", "idle").lines == []


def test_a_pause_is_printed_as_json(cli, channel):
    declare(channel, "q")
    shown = cli("pause", "q", "--reason", "tests", "--json").json
    assert (shown["queue"], shown["reason"], shown["until"]) == ("q", "tests", None)
    printed = cli("pause", "q", "--reason", "tests", "--for", "soon")
    assert printed.status == 2
    assert "'--for': 'soon' is not allowed; allowed: a number with s, m, h or d" in printed.err
    printed = cli("pause", "q", "--reason", "x", "--for", "3000000d")
    assert printed.status == 2
    assert "'--for': '3000000d' is not allowed; allowed: a number with s, m, h or d" in printed.err


def test_an_overview_of_a_vanished_queue_is_an_error(broker_url, channel):
    with BrokerAdmin(broker_url) as admin, pytest.raises(QueueNotFound):
        admin.overview_of("nothing")
    kombu.Queue("brief", auto_delete=True, expires=60)(channel).declare()
    with BrokerAdmin(broker_url) as admin:
        assert [one.queue for one in admin.overview()] == ["brief"]
