"""The command line on a broker with several shards."""

from __future__ import annotations

import json

import kombu
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.admin.shard_admin import admin_of_url
from celery_redis_plus.cli.main import main
from celery_redis_plus.cli.metrics import BrokerCollector
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import InvalidArgument, OptionError
from tests.integration.shards.conftest import SHARDS, named, refuse_shard
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until
from tests.support.web_page import web_page

QUEUES = sorted(named(shard) for shard in range(SHARDS))


@pytest.fixture
def url(broker_url):
    return f"{broker_url}?shards={SHARDS}"


@pytest.fixture
def filled(connect_shards):
    connection = connect_shards()
    channel = connection.channel()
    declare(channel, *QUEUES)
    for number, queue in enumerate(QUEUES):
        publish(channel, queue, *range(number + 1))
    return connection


def test_queues_of_all_shards_are_shown(filled, url, capsys):
    assert main(["queues", "--broker", url, "--json", "--sort", "name"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["queue"], one["ready"]) for one in shown if one["queue"] in QUEUES] == [(QUEUES[n], n + 1) for n in range(3)]


def test_a_check_looks_at_all_shards(filled, url, capsys):
    inbox = Inbox(filled.channel(), *QUEUES, ack=False)
    inbox.drain(2)
    assert main(["check", "--broker", url]) == 0
    assert "6 message(s): no violation" in capsys.readouterr().out


def test_a_policy_steers_the_queues_of_all_shards(filled, url):
    with admin_of_url(url) as admin:
        assert admin.set_policy("*", {"x-max-length": 5}, "all") == dict.fromkeys(QUEUES)
        assert [admin.arguments(queue) for queue in QUEUES] == [{"x-max-length": 5}] * SHARDS
        assert [one.pattern for one in admin.policies()] == ["*"]
        assert admin.remove_policy("*") == dict.fromkeys(QUEUES)
        assert [admin.arguments(queue) for queue in QUEUES] == [{}] * SHARDS


def test_a_task_of_any_shard_is_found_explained_and_taken_from_its_consumer(filled, url, capsys):
    def printed(*arguments):
        assert main([*arguments, "--broker", url, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    channel = filled.channel()
    for queue in QUEUES:
        publish(channel, queue, [[], {}, {}], headers={"task": "shop.pay", "id": f"task-{queue}"})
    for number, queue in enumerate(QUEUES):
        (why,) = printed("why", f"task-{queue}", "--sample", "0")
        assert {cause["kind"]: cause["values"].get("before") for cause in why["causes"]}["behind"] == number + 1
        assert printed("queue", queue)[0]["ready"] == number + 2
    inbox = Inbox(channel, QUEUES[0], ack=False, prefetch=2)
    inbox.drain(2)
    inbox.cancel()
    assert printed("messages", "kick", f"task-{QUEUES[0]}", "--yes") == [{"kicked": 1, "dry_run": False}]
    printed("pause", *QUEUES, "--reason", "tests")
    printed("policy", "*", "x-max-length=5", "--reason", "tests")
    found = [(one["action"], one["queue"], one["count"]) for one in reversed(printed("audit"))]
    # Entries of several shards within one millisecond have no order.
    found[1:-1] = sorted(found[1:-1])
    assert found == [("kick", QUEUES[0], 1), *(("pause", queue, 1) for queue in QUEUES), ("set policy", None, SHARDS)]


def test_the_doctor_names_the_shard(filled, url, capsys):
    main(["doctor", "--broker", url])
    out = capsys.readouterr().out
    assert all(f"shard {shard}: " in out for shard in range(SHARDS))


def test_a_queue_is_paused_purged_and_counted_in_its_shard(filled, url, capsys):
    for queue in QUEUES:
        assert main(["pause", "--broker", url, queue, "--reason", "test"]) == 0
        assert main(["resume", "--broker", url, queue]) == 0
        assert main(["purge", "--broker", url, queue, "--yes"]) == 0
    assert [filled.channel().queue_sizes(queue).ready for queue in QUEUES] == [0, 0, 0]


@pytest.mark.parametrize("command", [["queues"], ["check"], ["doctor"], ["consumers"], ["pause", "q", "--reason", "x"]])
def test_a_command_without_the_option_is_refused(filled, broker_url, capsys, command):
    assert main([*command, "--broker", broker_url]) != 0
    assert "shards=1 is not allowed for this broker; allowed: 3" in capsys.readouterr().err


def dead_letter(filled, queue):
    inbox = Inbox(filled.channel(), kombu.Queue(queue, no_declare=True), ack=False)
    inbox.drain(1)
    inbox.messages[0].reject()
    inbox.cancel()


def test_dead_letters_are_listed_and_replayed_into_another_shard(filled, url, capsys):
    source, target, channel = QUEUES[0], QUEUES[1], filled.channel()
    dead_letter(filled, source)
    wait_until(lambda: main(["dead-letters", "list", "--broker", url, source, "--json"]) == 0 and capsys.readouterr().out)
    assert main(["dead-letters", "replay", "--broker", url, source, "--to", target, "--all"]) == 0, capsys.readouterr().err
    assert channel.queue_sizes(target).ready == 3
    assert dead_letters_of(channel.of_queue(source)).count(source) == 0
    assert channel.queue_counters(source).replayed == 1


def test_an_unroutable_message_is_replayed_when_there_is_a_queue(filled, url, capsys):
    channel, exchange = filled.channel(), kombu.Exchange("orders", "direct")
    exchange(channel).declare()
    kombu.Producer(channel, exchange).publish("x", routing_key="new")
    for queue in QUEUES:
        kombu.Queue(queue, exchange, "new")(channel).declare()
    assert main(["dead-letters", "replay", "--broker", url, "celery_redis_plus.undelivered", "--all"]) == 0, capsys.readouterr()
    assert [channel.queue_sizes(queue).ready for queue in QUEUES] == [2, 3, 4]


def test_messages_are_found_and_cancelled_in_their_shards_and_not_moved_to_another(filled, url, capsys):
    with admin_of_url(url, {}) as admin:
        for queue in QUEUES:
            (tag, *_) = [one.tag for one in admin.list_messages(queue, "ready")]
            assert admin.messages.find(tag).queue == queue
            with pytest.raises(InvalidArgument, match="in another shard than queue"):
                admin.messages.move(tag, QUEUES[QUEUES.index(queue) - 1])
            assert admin.messages.cancel(tag)
        assert [one.ready for one in admin.overview(*QUEUES)] == [0, 1, 2]


def test_tasks_are_cancelled_to_the_dead_letters_of_their_shard(filled, url, capsys):
    filled.default_channel.basic_publish(
        filled.default_channel.prepare_message("x", headers={"task": "shop.pay", "id": "1"}), "", QUEUES[2]
    )
    arguments = ["messages", "cancel", "--broker", url, "--queue", QUEUES[2], "--task", "shop.pay", "--dead-letter", "--yes"]
    assert main(arguments) == 0, capsys.readouterr().err
    with admin_of_url(url) as admin:
        assert [letter.queue for letter in admin.dead_letters.page(QUEUES[2])] == [QUEUES[2]]


def test_metrics_are_of_all_shards(filled, url):
    registry, collector = CollectorRegistry(), BrokerCollector(lambda: admin_of_url(url, {}))
    registry.register(collector)
    text = generate_latest(registry).decode()
    collector.close()
    for number, queue in enumerate(QUEUES):
        assert f'celery_redis_plus_queue_messages{{queue="{queue}",state="ready"}} {number + 1}.0' in text


def test_the_web_page_shows_and_changes_queues_of_all_shards(filled, url):
    dead_letter(filled, QUEUES[2])
    with web_page(url) as page:
        shown = page.get("/").text
        assert all(queue in shown for queue in QUEUES)
        for queue in QUEUES:
            assert page.get("/queue", name=queue).status == 200
            page.post("/queue/pause", {"reason": "test", "for": "900"}, name=queue)
        assert all(one.paused == "test" for one in page.admin().overview(*QUEUES))
        (letter,) = page.admin().dead_letters.page(QUEUES[2])
        for path in ("/running", "/scheduled", "/scheduled?task=x", f"/dead-letters/groups?queue={QUEUES[2]}", "/?sort=ready"):
            assert page.get(path).status == 200
        for path in ("", "&order=oldest", "&text=none"):
            assert page.get(f"/dead-letters?queue={QUEUES[2]}{path}").status == 200
        first = next(page.admin().list_messages(QUEUES[1], "ready"))
        page.post("/messages/prioritize", {"message": f"{first.tag} {QUEUES[1]}", "priority": "9"}, back="/queue", name=QUEUES[1])
        assert next(page.admin().list_messages(QUEUES[1], "ready")).priority == 9
        page.post("/dead-letters/replay", {"tag": letter.tag}, queue=QUEUES[2])
    assert filled.channel().queue_sizes(QUEUES[2]).ready == 3


def test_the_class_for_one_shard_is_refused(url):
    with pytest.raises(OptionError, match="this is for one shard of the 3"):
        BrokerAdmin(url)


def test_a_shard_that_is_down_is_left_out_and_named(filled, url, capsys, caplog, monkeypatch):
    monkeypatch.setattr(Connector, "open", refuse_shard(1))
    assert main(["queues", "--broker", url, "--json"]) == 0
    shown = [json.loads(line)["queue"] for line in capsys.readouterr().out.splitlines()]
    assert [queue for queue in QUEUES if queue not in shown] == [named(1)]
    assert "shard 1 of 3 is unreachable: no connection to this shard; its queues are left out" in caplog.text
    assert main(["pause", "--broker", url, named(1), "--reason", "test"]) != 0
    assert "shard 1 of 3 is unreachable" in capsys.readouterr().err
    assert main(["check", "--broker", url]) != 0
    assert main(["doctor", "--broker", url]) != 0
    assert "shard 1 of 3 is unreachable" in capsys.readouterr().out
    assert main(["queues", "--broker", url, "--shard", "1"]) != 0
    assert "no connection to this shard" in capsys.readouterr().err
    registry, collector = CollectorRegistry(), BrokerCollector(lambda: admin_of_url(url, {}))
    registry.register(collector)
    text = generate_latest(registry).decode()
    collector.close()
    assert f'queue="{named(2)}"' in text
    assert f'queue="{named(1)}"' not in text


def test_definitions_of_all_shards_come_back_and_all_keys_go(filled, url, capsys, tmp_path):
    channel = filled.channel()
    channel.exchange_declare("shop", type="topic")
    for queue in QUEUES:
        channel.queue_bind(queue, "shop", f"{queue}.#")
    file = str(tmp_path / "definitions.json")
    assert main(["export", "definitions", "--broker", url, "--output", file]) == 0
    filled.close()
    assert main(["uninstall", "--broker", url, "--yes"]) == 0
    assert main(["queues", "--broker", url, "--json"]) == 0
    assert "key(s) are deleted" in capsys.readouterr().out
    assert main(["import", "definitions", file, "--broker", url]) == 0
    assert capsys.readouterr().out == "1 exchange, 3 queues, 3 bindings, 0 policies are declared; 0 are there already\n"
    assert main(["import", "definitions", file, "--broker", url]) == 0
    assert capsys.readouterr().out == "0 exchanges, 0 queues, 0 bindings, 0 policies are declared; 7 are there already\n"
    with admin_of_url(url) as admin:
        for queue in QUEUES:
            assert [(name, one.routing_key) for name, one in admin.bindings(queue)] == [("shop", f"{queue}.#")]
