"""`celery-redis-plus doctor` on real servers."""

from __future__ import annotations

import math
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.admin.diagnosis import response_checks
from celery_redis_plus.admin.diagnosis.checks import CHECKS
from celery_redis_plus.admin.diagnosis.rights import WORDS
from celery_redis_plus.cli.main import main
from celery_redis_plus.errors import InvalidArgument, QueueFull, ServerUnavailable
from celery_redis_plus.keys import Keys
from tests.support.access import RoleServer
from tests.support.inbox import Inbox, declare, publish
from tests.support.servers import new_server
from tests.support.waiting import wait_until

QUEUE_CHECKS = (
    *("unconverted", "consumers", "silent", "maintenance", "limits", "stuck", "backlog", "pauses", "dead-letters"),
)  # fmt: skip


def found(url, *checks, roles=()):
    """Return the findings by the names of their checks."""
    with BrokerAdmin(url) as admin:
        by_check = {}
        for finding in admin.examine(checks, roles):
            by_check.setdefault(finding.check, []).append(finding)
    return by_check


def only(url, check, **options):
    """Return the one finding of a check."""
    ((finding,),) = found(url, check, **options).values()
    return finding


def test_a_broker_without_queues_names_database_prefix_and_the_databases_with_keys(own_server):
    with kombu.Connection(own_server.url()) as connection:
        declare(connection.default_channel, "q")
    assert only(own_server.url(), "consumers").level == "ok"
    finding = only(f"{own_server.url(3)}?global_keyprefix=shop:", "consumers")
    assert (finding.level, finding.text.partition("; ")[0]) == (
        "advice",
        "there is no queue under the prefix 'shop:' in database 3",
    )
    with own_server.client() as client:
        keys = client.dbsize()
    assert finding.text.endswith(f"; with keys: database 0 ({keys})")
    assert finding.values == {"database": 3, "prefix": "shop:", "keys": {0: keys}, "prefixes": []}


def test_a_wrong_prefix_is_told_from_those_that_are_there(broker_url, connect):
    for prefix in ("shop:", "{mail}."):
        declare(connect(global_keyprefix=prefix).channel(), "q")
    finding = only(f"{broker_url}?global_keyprefix=shopp:", "consumers")
    assert finding.text.endswith("; brokers in database 0 have the prefix 'shop:', '{mail}.'")
    assert finding.values["prefixes"] == ["shop:", "{mail}."]


@pytest.mark.parametrize("name", ["orders; echo PASTED", "$(echo PASTED)", "-rf", "it's", "plain"])
def test_advice_quotes_names_for_a_shell(broker_url, channel, name):
    inbox = Inbox(channel, name, ack=False)
    publish(channel, name, "x", "y")
    inbox.drain(2)
    inbox.messages[0].reject()
    inbox.messages[1].requeue()
    inbox.cancel()
    with BrokerAdmin(broker_url) as admin:
        admin.pause(name, "tests")
    advice = {check: findings[0].advice for check, findings in found(broker_url, "consumers", "pauses", "dead-letters").items()}
    words = [shlex.split(re.search(r"(?:-Q|`resume|`dead-letters list) (.*?)[`.]", advice[check])[1]) for check in advice]
    operand = [*(["--"] if name.startswith("-") else []), name]
    assert dict(zip(advice, words, strict=True)) == {"consumers": [name], "pauses": operand, "dead-letters": operand}


def test_a_user_that_may_not_name_its_connection_is_told_all_that_it_lacks(secured):
    secured.grant("", "-client|setname", "-xadd")
    finding = only(secured.url(), "rights", roles=["worker"])
    assert (finding.level, finding.text) == ("danger", "user 'worker' lacks 2 right(s) of a worker: +client|setname +xadd")
    secured.grant("", "-client|setname")
    assert only(secured.url(), "rights", roles=["worker"]).level == "advice"


@pytest.fixture(scope="module")
def durable():
    """A server at which nothing is wrong."""
    with new_server({"appendonly": "yes", "maxmemory": "1gb", "maxmemory-policy": "noeviction"}) as server:
        with kombu.Connection(server.url()) as connection:
            declare(connection.default_channel, "q")
        yield server


@pytest.fixture
def secured(durable):
    return RoleServer(durable, "worker")


def test_a_broker_without_faults_is_ok_in_every_respect(durable, capsys):
    main(["doctor", "--broker", durable.url()])
    *lines, summary = capsys.readouterr().out.splitlines()
    levels = {line.split()[1]: line.split()[0] for line in lines if not line.startswith(" ")}
    assert sorted(levels) == sorted(CHECKS)
    assert summary.startswith(f"{len(CHECKS)} finding(s): ")
    # That of a busy machine may be large.
    del levels["latency"]
    assert "danger" not in levels.values()


def test_danger_is_the_exit_status(durable, capsys):
    with durable.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert main(["doctor", "--broker", durable.url(), "--json"]) == 1
        dangers = [line for line in capsys.readouterr().out.splitlines() if '"level": "danger"' in line]
        assert len(dangers) == 1
        assert '"check": "eviction"' in dangers[0]
        assert '"policy": "allkeys-lru"' in dangers[0]
    finally:
        with durable.client() as client:
            client.config_set("maxmemory-policy", "noeviction")


def test_a_replica_that_keeps_up_is_seen(durable, start_server):
    replica = start_server({"replicaof": f"127.0.0.1 {durable.port}"})
    deadline = time.monotonic() + 30
    url = durable.url() + "?wait_replicas=1"
    while (finding := only(url, "replication")).values["online"] < 1:
        assert time.monotonic() < deadline, finding
        time.sleep(0.05)
    assert finding.level == "ok"
    assert finding.text.startswith("1 of 1 replicas in sync")
    replica.kill()


@pytest.mark.parametrize("name", ["min-replicas-to-write", "min-slaves-to-write"])
def test_a_server_that_wants_more_replicas_than_it_has_is_a_danger(start_server, name):
    server = start_server({name: "1"})
    with pytest.raises(ServerUnavailable, match="NOREPLICAS"):
        kombu.Connection(server.url()).channel().queue_declare("q")
    finding = only(server.url(), "replication")
    assert finding.level == "danger"
    assert finding.text == "the server refuses publishes: min-replicas-to-write is 1, with 0 good replica(s)"
    assert finding.values["min_replicas_to_write"] == 1


@pytest.mark.parametrize("role", ["worker", "publisher", "monitor"])
def test_a_user_with_the_documented_rule_can_play_its_role(secured, role):
    secured.grant()
    finding = only(secured.url(role=role), "rights", roles=[role])
    assert (finding.level, finding.text) == ("ok", f"user '{role}' has the rights of a {role}")


def test_missing_rights_are_named(secured):
    secured.grant("", "-xadd", "-client|list")
    finding = only(secured.url(), "rights", roles=["worker"])
    assert (finding.level, finding.text) == ("danger", "user 'worker' lacks 2 right(s) of a worker: +client|list +xadd")
    finding = only(secured.url(), "rights")
    assert finding.level == "advice"
    assert finding.text.startswith("user 'worker' has the rights of monitor, and lacks 1 right(s) of a publisher: +xadd")
    secured.grant("", "-evalsha")
    finding = only(secured.url(), "rights")
    assert (finding.level, "evalsha" in finding.text) == ("danger", True)


def test_each_command_of_a_role_is_asked_for_with_all_arguments_that_the_server_demands(durable):
    """A server ends on a question with too few."""
    with durable.client() as client:
        connection = client.connection_pool.get_connection()
        connection.send_command("COMMAND", "INFO", *WORDS)
        replies = connection.read_response()
        client.connection_pool.release(connection)
    for words, reply in zip(WORDS.values(), replies, strict=True):
        if reply is not None:
            arity = reply[1]
            assert len(words) == arity if arity > 0 else len(words) >= -arity, words


def test_a_user_of_other_keys_has_no_rights_here(secured):
    secured.grant("shop:")
    assert only(secured.url(), "rights").level == "danger"
    with BrokerAdmin(secured.url(), {"global_keyprefix": "shop:"}) as admin:
        (finding,) = admin.examine(["rights"], ["worker"])
    assert finding.level == "ok"


def test_a_monitor_is_told_all_but_what_it_may_not_ask(secured):
    secured.grant()
    levels = {check: {one.level for one in findings} for check, findings in found(secured.url(role="monitor")).items()}
    assert set(levels) == set(CHECKS)
    assert not [check for check, seen in levels.items() if seen & {"danger", "unknown"}]


def test_without_the_right_to_ask_info_the_other_checks_go_on(secured, capsys, monkeypatch):
    # However busy the machine is that runs this.
    monkeypatch.setattr(response_checks, "LATENCY_ADVICE_MS", math.inf)
    monkeypatch.setattr(response_checks, "LATENCY_DANGER_MS", math.inf)
    secured.grant("", "-info")
    assert main(["doctor", "--broker", secured.url()]) == 0
    lines = capsys.readouterr().out.splitlines()
    levels = {line.split()[1]: line.split()[0] for line in lines if not line.startswith(" ")}
    asked = ("server", "persistence", "eviction", "memory", "clients", "replication", "scripts")
    assert {levels[check] for check in asked} == {"unknown"}
    assert {levels[check] for check in (*QUEUE_CHECKS, "latency", "clock")} == {"ok"}


def test_a_clock_that_differs_is_told_with_its_direction(durable, monkeypatch):
    def shifted(seconds):
        monkeypatch.setattr(response_checks, "time", SimpleNamespace(time=lambda: time.time() + seconds))
        return only(durable.url(), "clock")

    assert shifted(0).level == "ok"
    finding = shifted(-5)
    assert (finding.level, finding.text) == ("advice", "the server's clock is 5.0 s ahead of this host's")
    assert shifted(100).level == "danger"


def test_a_slow_answer_is_a_finding(durable, monkeypatch):
    ticks = iter(range(0, 10_000, 1))
    monkeypatch.setattr(response_checks, "time", SimpleNamespace(monotonic=lambda: 0.0, perf_counter=lambda: next(ticks) * 0.3))
    finding = only(durable.url(), "latency")
    assert (finding.level, finding.values["p99_ms"]) == ("danger", 300.0)


def test_messages_without_a_consumer_are_found(broker_url, channel, redis_client):
    declare(channel, "q", "idle")
    publish(channel, "q", "x")
    finding = only(broker_url, "consumers")
    assert (finding.level, finding.values["queue"], finding.values["ready"]) == ("advice", "q", 1)
    age(redis_client, channel, "q", 120_000)
    finding = only(broker_url, "consumers")
    assert finding.level == "danger"
    assert finding.text == "queue 'q' has 1 ready and 0 delayed message(s), for 2 min, and no consumer"


def age(client, channel, queue, ms):
    """Let the messages of `queue` be ready since a time that lies `ms` before."""
    ready = channel.session.keys.queue(queue).ready
    for tag in client.zrange(ready, 0, -1):
        client.zincrby(ready, -ms, tag)


def test_of_many_queues_only_some_are_named(broker_url, channel):
    names = [f"q{number}" for number in range(25)]
    declare(channel, *names)
    for name in names:
        publish(channel, name, "x")
    findings = found(broker_url, "consumers")["consumers"]
    assert len(findings) == 21
    assert findings[-1].text == "and 5 more of this kind"


def test_a_silent_consumer_is_named_with_what_it_holds(broker_url, channel, connect, redis_client):
    inbox = Inbox(connect().channel(), "q", ack=False, prefetch=2)
    publish(channel, "q", "a", "b")
    inbox.drain(2)
    assert only(broker_url, "silent").level == "ok"
    of = channel.session.keys.queue("q")
    (name,) = redis_client.zrange(of.consumers, 0, -1)
    record = of.consumer + name
    redis_client.hset(record, "heard", int(redis_client.hget(record, "heard")) - 50_000)
    finding = only(broker_url, "silent")
    assert (finding.level, finding.values["held"]) == ("danger", 2)
    assert "is silent for" in finding.text


def test_consumers_that_fell_silent_in_the_same_millisecond_are_all_named(broker_url, channel, connect, redis_client):
    names = ("a", "b", "c")
    inboxes = [Inbox(connect().channel(), name) for name in names]
    assert len(inboxes) == len(names)

    def named():
        # Again, where a heartbeat came between.
        for name in names:
            of = channel.session.keys.queue(name)
            (consumer,) = redis_client.zrange(of.consumers, 0, -1)
            redis_client.hset(of.consumer + consumer, "heard", 1_700_000_000_000)
        return {finding.values.get("queue") for finding in found(broker_url, "silent")["silent"]}

    wait_until(lambda: named() == set(names))


def test_a_backlog_names_its_most_frequent_task(broker_url, channel, connect, redis_client):
    Inbox(connect().channel(), "q", ack=False, prefetch=1)
    for number in range(10):
        publish(channel, "q", number, headers={"task": "flood" if number % 3 else "other"})
    assert only(broker_url, "backlog").level == "ok"
    age(redis_client, channel, "q", 600_000)
    finding = only(broker_url, "backlog")
    assert finding.level == "advice"
    assert finding.text.startswith("messages of queue 'q' wait for 10 min: ")
    assert "are of task flood" in finding.text


def test_a_pause_that_nobody_remembers_is_a_danger(broker_url, channel, redis_client, cli):
    declare(channel, "q")
    publish(channel, "q", "x")
    cli("pause", "q", "--reason", "the database moves")
    finding = only(broker_url, "pauses")
    assert (finding.level, finding.values["reason"], finding.values["ready"]) == ("advice", "the database moves", 1)
    meta = channel.session.keys.queue("q").meta
    redis_client.hset(meta, "paused_at", int(redis_client.hget(meta, "paused_at")) - 7_200_000)
    finding = only(broker_url, "pauses")
    assert finding.level == "danger"
    assert finding.text == "queue 'q' is paused for 2.0 h, without an end: 'the database moves'; 1 ready message(s) wait"
    cli("pause", "q", "--reason", "again", "--for", "8h")
    redis_client.hset(meta, "paused_at", int(redis_client.hget(meta, "paused_at")) - 7_200_000)
    finding = only(broker_url, "pauses")
    assert finding.level == "advice", "it ends by itself"
    assert finding.text.startswith("queue 'q' is paused for 2.0 h, until ")


@pytest.mark.parametrize(
    ("overflow", "said"),
    [
        ({}, "the oldest messages are dropped"),
        ({"x-overflow": "reject-publish"}, "publishes are refused; it has refused 1 publish(es)"),
        ({"x-overflow": "block"}, "publishers wait"),
    ],
)
def test_a_full_queue_is_danger_and_a_nearly_full_one_advice(broker_url, channel, overflow, said):
    declare(channel, "big", arguments={"x-max-length": 10, **overflow})
    publish(channel, "big", *range(9))
    finding = only(broker_url, "limits")
    assert (finding.level, finding.values["used"], finding.values["most"]) == ("advice", 9, 10)
    publish(channel, "big", "last")
    if overflow.get("x-overflow") == "reject-publish":
        with pytest.raises(QueueFull):
            publish(channel, "big", "more")
    finding = only(broker_url, "limits")
    assert finding.level == "danger"
    assert finding.text.startswith(f"queue 'big' is full: 10 of 10 (x-max-length); {said}")
    with BrokerAdmin(broker_url) as admin:
        admin.purge("big")
    assert only(broker_url, "limits").text == "1 queue(s) have a limit, none of them is full"


def test_a_message_that_a_consumer_has_had_for_long_is_named_with_its_process(broker_url, channel, redis_client):
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", "x", "y")
    inbox.drain(2)
    assert only(broker_url, "stuck").level == "ok"
    of = Keys("").queue("q")
    (first, _) = redis_client.zrange(of.index, 0, -1)
    redis_client.hincrby(of.message + first, "claimed", -7_200_000)
    finding = only(broker_url, "stuck")
    assert (finding.level, finding.values["messages"], finding.values["id"]) == ("advice", 1, first.decode())
    assert f"{first.decode()} for 2.0 h, by {socket.gethostname()}:{os.getpid()}" in finding.text


def test_the_worst_findings_are_printed_first(broker_url, channel, capsys):
    declare(channel, "full", arguments={"x-max-length": 1})
    publish(channel, "full", 1)
    main(["doctor", "--broker", broker_url])
    levels = [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1] if not line.startswith(" ")]
    assert levels == sorted(levels, key=["danger", "unknown", "advice", "ok"].index)
    assert levels[0] == "danger"


def test_dead_letters_are_counted_and_their_task_is_named(broker_url, channel, connect):
    inbox = Inbox(connect().channel(), "q", ack=False)
    for number in range(3):
        publish(channel, "q", number, headers={"task": "poison" if number else "other"})
    inbox.drain(3)
    for message in inbox.messages:
        message.reject()
    finding = only(broker_url, "dead-letters")
    assert (finding.level, finding.text) == ("advice", "3 dead letter(s) in queue 'q'; of the youngest 3, 2 are of task poison")
    finding = only(broker_url + "?dead_letter_max=3", "dead-letters")
    assert finding.level == "danger"
    assert "of 3 that are kept: the oldest are deleted" in finding.text


def test_messages_of_kombu_s_own_transport_are_found(broker_url, channel, redis_client):
    declare(channel, "q")
    redis_client.lpush("q", "{}", "{}")
    redis_client.set("q\x06\x163", "no list")
    finding = only(broker_url, "unconverted")
    assert (finding.level, finding.text) == ("danger", "2 message(s) for queue 'q' are in kombu's own lists")


@pytest.mark.parametrize("key", [*(f"q\x06\x16{step}" for step in range(1, 10)), "celery_redis_plus.moving:q"])
def test_messages_of_every_priority_and_of_a_killed_migration_are_found(broker_url, channel, redis_client, key):
    declare(channel, "q")
    redis_client.lpush(key, "{}")
    finding = only(broker_url, "unconverted")
    assert (finding.level, finding.values) == ("danger", {"queue": "q", "messages": 1})
    assert "migrate" in finding.advice
    assert ("--from" in finding.advice) == ("moving" in key)


def test_messages_in_the_steps_and_the_separator_of_the_app_are_found(broker_url, channel, redis_client):
    declare(channel, "q")
    redis_client.lpush("q|20", "{}", "{}")
    assert only(broker_url, "unconverted").level == "ok"
    with BrokerAdmin(broker_url) as admin:
        (finding,) = admin.examine(["unconverted"], kombu_options={"priority_steps": [0, 20], "sep": "|"})
    assert (finding.level, finding.values["messages"]) == ("danger", 2)


def test_a_check_that_is_none_is_refused(broker_url, cli):
    with BrokerAdmin(broker_url) as admin, pytest.raises(InvalidArgument, match="there is no check 'nothing'; allowed: server, "):
        list(admin.examine(["nothing"]))
    printed = cli("doctor", "--check", "nothing")
    assert printed.status == 1
    assert "there is no check 'nothing'" in printed.err


def test_a_server_that_is_away_is_one_line_and_status_3():
    command = [sys.executable, "-m", "celery_redis_plus", "doctor", "--broker", "redis://127.0.0.1:1/0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (3, "", 1)
