"""`celery-redis-plus audit` on a real server: each action leaves one entry, with who, what, how many and from where."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from celery import Celery
from redis.exceptions import ConnectionError as RedisConnectionError

import celery_redis_plus
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.queues import audit
from celery_redis_plus.broker.queues.audit import Actor, acting, user_and_host
from celery_redis_plus.keys import Keys
from tests.support.inbox import Inbox, declare, publish
from tests.support.kombu_installation import declare_old
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

HERE = f"{socket.gethostname()}:{os.getpid()}"


@pytest.fixture
def entries(cli):
    """Return the audit log, the last action first; or what is selected."""
    return lambda *arguments: cli("audit", "--json", *arguments).lines


@pytest.fixture
def shop(channel):
    declare(channel, "q", "other")
    for number in range(4):
        publish(channel, "q", [[number], {}, {}], headers={"task": "shop.pay", "id": f"task-{number}"})
    return channel


def test_each_action_of_the_command_line_is_one_entry(cli, shop, entries, connect):
    assert cli("pause", "q", "--reason", "tests").status == 0
    assert cli("resume", "q").status == 0
    assert cli("messages", "cancel", "task-0", "--yes").status == 0
    assert cli("messages", "move", "task-1", "--to", "other").status == 0
    assert cli("messages", "reschedule", "task-2", "--in", "1h").status == 0
    assert cli("messages", "cancel", "--task", "shop.*", "--queue", "q", "--dead-letter").status == 0
    assert cli("dead-letters", "replay", "q", "--all").status == 0
    assert cli("purge", "q", "--yes").status == 0
    found = [(one["action"], one["queue"], one["count"], one["outcome"]) for one in reversed(entries())]
    assert found == [
        ("pause", "q", 1, "done"),
        ("resume", "q", 1, "done"),
        ("cancel", "q", 1, "done"),
        ("move", "q", 1, "done"),
        ("reschedule", "q", 1, "done"),
        ("cancel", "q", 2, "done"),
        ("replay", "q", 2, "done"),
        ("purge", "q", 2, "done"),
    ]
    assert {(one["actor"], one["via"], one["origin"]) for one in entries()} == {(user_and_host(), "cli", HERE)}
    assert entries("--action", "pause")[0]["details"] == {"reason": "tests"}
    assert entries("--action", "move")[0]["details"] == {"id": "task-1", "to": "other"}
    printed = cli("audit", "--limit", "1").out.splitlines()
    assert printed[0].split()[:4] == ["TIME", "(UTC)", "ACTOR", "VIA"]
    assert "purge" in printed[1]


def test_dead_letters_that_are_deleted_are_counted(cli, channel, entries):
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", 1, 2, 3)
    inbox.drain(3)
    for message in inbox.messages:
        message.reject()
    inbox.cancel()
    wait_until(lambda: cli("queues", "q", "--json").json["dead"] == 3)
    (tag, *_) = [one["tag"] for one in cli("dead-letters", "list", "q", "--json").lines]
    assert cli("dead-letters", "delete", "q", tag).status == 0
    assert cli("dead-letters", "purge", "q", "--yes").status == 0
    assert [(one["action"], one["count"]) for one in entries()] == [("purge dead letters", 2), ("delete dead letters", 1)]
    assert entries("--action", "delete dead letters")[0]["details"] == {"ids": tag}


def test_a_repair_and_a_migration_are_noted_with_what_they_changed(cli, shop, entries, redis_client, old):
    redis_client.zadd(Keys("").queue("q").ready, {"nothing": 5})
    assert cli("check").status == 1
    assert cli("check", "--repair", "--queue", "q").status == 1
    declare_old(old, "other")
    publish(old, "other", 1, 2)
    assert cli("migrate", "--status").status == 0
    assert cli("migrate").status == 0
    assert [(one["action"], one["queue"], one["count"]) for one in reversed(entries())] == [
        ("repair", "q", 1),
        ("migrate", None, 2),
    ]
    assert entries("--action", "migrate")[0]["details"] == {"direction": "from kombu's lists"}


def test_policies_are_noted_with_the_queues_that_they_steer(cli, shop, entries):
    assert cli("policy", "q*", "x-max-length=10", "--reason", "tests").status == 0
    assert cli("policy", "q*", "--remove").status == 0
    assert [(one["action"], one["count"]) for one in reversed(entries())] == [("set policy", 1), ("remove policy", 1)]
    assert entries("--action", "set policy")[0]["details"] == {"pattern": "q*", "arguments": "x-max-length=10", "reason": "tests"}
    assert cli("policy", "q*", "x-max-length=none", "--reason", "tests").status != 0
    assert len(entries()) == 2


def test_what_changes_nothing_leaves_no_entry(cli, shop, entries):
    assert cli("resume", "q").status == 0
    assert cli("messages", "cancel", "nobody", "--yes").status == 1
    assert cli("messages", "cancel", "--task", "shop.*", "--queue", "q", "--dry-run").status == 0
    assert cli("purge", "q", "--dry-run").status == 0
    assert entries() == []


def test_entries_are_selected_by_queue_and_actor(cli, shop, entries, broker_url):
    with BrokerAdmin(broker_url) as admin, acting(Actor("Ada", "web", "10.0.0.7")):
        admin.pause("q", "x")
        admin.pause("other", "y")
    cli("pause", "q", "--reason", "z")
    assert [one["origin"] for one in entries("--actor", "ada")] == ["10.0.0.7", "10.0.0.7"]
    assert [one["details"]["reason"] for one in entries("--queue", "q")] == ["z", "x"]
    assert cli("why", "task-0", "--sample", "0").out.count(f"is paused by {user_and_host()}") == 1


def test_actions_of_an_application_are_noted_with_its_process(shop, entries, broker_url, caplog):
    app = celery_redis_plus.configure_app(Celery("shop", broker=broker_url))
    with caplog.at_level(logging.INFO, audit.__name__):
        assert celery_redis_plus.cancel(app, "task-0", queue="q")
    (one,) = entries()
    assert (one["action"], one["queue"], one["count"], one["via"], one["origin"]) == ("cancel", "q", 1, "api", HERE)
    assert one["details"] == {"id": "task-0"}
    (line,) = [record.getMessage() for record in caplog.records if record.name == audit.__name__]
    assert line == f"audit: cancel in queue 'q': 1 changed, id task-0, by {user_and_host()} (api, {HERE})"


def test_an_action_whose_process_is_killed_is_known_by_its_beginning(shop, entries, broker_url):
    script = (
        "import os, sys\n"
        "from celery_redis_plus.admin.broker_admin import BrokerAdmin\n"
        "with BrokerAdmin(sys.argv[1]) as admin, admin.audit.action('purge', 'q', in_steps=True):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, broker_url], check=False).returncode == -signal.SIGKILL
    assert [(one["action"], one["outcome"], one["count"]) for one in entries()] == [("purge", "begun", 0)]


def test_an_action_that_is_cut_short_says_what_it_had_done(shop, entries, broker_url):
    def act(admin):
        with admin.audit.action("cancel", "q", in_steps=True, task="shop.*") as action:
            action.count = 7
            raise KeyboardInterrupt

    with BrokerAdmin(broker_url) as admin, pytest.raises(KeyboardInterrupt):
        act(admin)
    assert [(one["outcome"], one["count"], one["details"]) for one in entries()] == [
        ("failed", 7, {"task": "shop.*", "error": "KeyboardInterrupt"})
    ]


def test_the_server_keeps_a_bounded_number_of_entries_and_pages_are_read_on(shop, entries, broker_url, monkeypatch, redis_client):
    monkeypatch.setattr(audit, "KEPT", 100)
    monkeypatch.setattr(audit, "PAGE", 7)
    with BrokerAdmin(broker_url) as admin:
        for number in range(250):
            with admin.audit.action("act", "q", number=number) as action:
                action.count = 1
    kept = redis_client.xlen(Keys("").audit)
    assert 100 <= kept <= 200
    assert [one["details"]["number"] for one in entries("--limit", "1000")] == [str(249 - at) for at in range(kept)]


def test_a_log_that_cannot_be_written_ends_no_action_and_says_so(cli, shop, redis_client, caplog):
    redis_client.set(Keys("").audit, "something else")
    assert cli("pause", "q", "--reason", "tests").status == 0
    assert cli("queues", "q", "--json").json["paused"] == "tests"
    assert any("the audit log has no entry of an action (pause by " in record.getMessage() for record in caplog.records)


def test_the_user_of_a_shared_account_names_himself(cli, shop, entries, monkeypatch):
    monkeypatch.setenv(audit.ACTOR_VARIABLE, "grace")
    cli("pause", "q", "--reason", "tests")
    assert [one["actor"] for one in entries()] == ["grace"]


def test_others_entries_in_the_stream_are_passed_over(cli, shop, entries, redis_client):
    redis_client.xadd(Keys("").audit, {"actor": "nobody", "details": "["})
    cli("pause", "q", "--reason", "tests")
    assert [one["action"] for one in entries()] == ["pause"]


@pytest.mark.usefixtures("shop")
def test_an_action_whose_reply_is_lost_is_an_entry_that_says_so(redis_client, broker_url, entries):
    where = redis_client.connection_pool.connection_kwargs
    with Proxy(lambda: where["port"]) as proxy, BrokerAdmin(proxy.url(where["db"])) as admin:
        admin.queues()
        # The script is loaded, so that the next call runs it.
        admin.resume("q")
        proxy.lose_replies()
        threading.Timer(0.5, lambda: proxy.heal(resets=True)).start()
        with pytest.raises(RedisConnectionError):
            admin.pause("q", "tests", None)
    wait_until(lambda: len(entries()) == 1)
    (entry,) = entries()
    assert (entry["action"], entry["outcome"]) == ("pause", "failed")
