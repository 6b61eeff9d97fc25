"""`celery-redis-plus export definitions` and `import definitions` on a real server."""

from __future__ import annotations

import json

import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from tests.support.inbox import Inbox, declare, publish


@pytest.fixture
def filled(channel, cli):
    """Declare some of everything, as an application would."""
    declare(channel, "orders", arguments={"x-max-length": 100, "x-dead-letter-exchange": ""})
    declare(channel, "mails", durable=False)
    channel.queue_declare("short", auto_delete=True)
    channel.exchange_declare("shop", type="topic", durable=True)
    channel.exchange_declare("news", type="fanout")
    channel.queue_declare("reader", arguments={"x-durable-subscriber": True})
    channel.queue_bind("orders", "shop", "order.#")
    channel.queue_bind("mails", "shop", "mail.*")
    channel.queue_bind("reader", "news", "")
    cli("policy", "orders", "x-rate-limit=50/m", "--reason", "quota", "--priority", "3")


def test_definitions_come_back_as_they_were(cli, filled, channel, broker_url, tmp_path):
    file = tmp_path / "definitions.json"
    assert cli("export", "definitions", "--output", str(file)).status == 0
    document = json.loads(file.read_text())
    assert [queue["name"] for queue in document["queues"]] == ["mails", "orders", "reader"]
    assert document["queues"][1]["arguments"] == {"x-dead-letter-exchange": "", "x-max-length": 100}
    assert document["policies"][0]["definition"] == {"x-rate-limit": "50/m"}
    same = cli("import", "definitions", str(file), "--json").json
    assert (sum(same["declared"].values()), same["present"], same["conflicts"]) == (0, 9, [])

    url = f"{broker_url}{'&' if '?' in broker_url else '?'}global_keyprefix=other."
    assert cli("import", "definitions", str(file), "--broker", url, "--dry-run").out == (
        "2 exchanges, 3 queues, 3 bindings, 1 policy would be declared; 0 are there already\n"
    )
    assert cli("queues", "--broker", url, "--json").out == ""
    assert cli("import", "definitions", str(file), "--broker", url).status == 0
    again = cli("export", "definitions", "--broker", url).json_document
    assert again == document
    assert cli("import", "definitions", str(file), "--broker", url, "--json").json["present"] == 9
    with BrokerAdmin(url) as admin:
        assert [one.queue for one in admin.subscribers("news")["news"]] == ["reader"]
        assert [(one.action, one.count) for one in admin.audit.entries()] == [("import definitions", 9)]


def test_a_conflict_is_told_and_nothing_is_changed(cli, channel, tmp_path):
    declare(channel, "a", arguments={"x-max-length": 5})
    file = tmp_path / "definitions.json"
    file.write_text(
        json.dumps(
            {
                "queues": [
                    {"name": "a", "durable": True, "arguments": {"x-max-length": 6}},
                    {"name": "new", "durable": True, "arguments": {}},
                    {"name": "misspelled", "durable": True, "arguments": {"x-max-lenght": 6}},
                ],
                "bindings": [
                    {"source": "nowhere", "destination": "new", "destination_type": "queue", "routing_key": "k", "arguments": {}}
                ],
            }
        )
    )
    refused = cli("import", "definitions", str(file))
    assert refused.status == 1
    assert "conflict: inequivalent arg 'x-max-length' for queue 'a': received 6 but current is 5" in refused.err
    assert "conflict: argument 'x-max-lenght' of queue 'misspelled' is 6, which is unknown here; did you mean" in refused.err
    assert "a binding names exchange 'nowhere', which is neither here nor in the file" in refused.err
    assert "1 queue, 0 bindings, 0 policies are missing; nothing was changed" in refused.out
    assert [one["queue"] for one in cli("queues", "--json").lines] == ["a"]
    assert cli("import", "definitions", str(file), "--skip-conflicts").status == 1
    assert [one["queue"] for one in cli("queues", "--json").lines] == ["a", "new"]
    publish(channel, "new", "one")
    assert Inbox(channel, "new").exactly(1) == ["one"]


@pytest.mark.parametrize("change", [("x-rate-limit=60/m", "--priority", "3"), ("x-rate-limit=50/m", "--priority", "4")])
def test_a_policy_with_other_arguments_or_another_priority_is_a_conflict(change, cli, filled, tmp_path):
    file = tmp_path / "definitions.json"
    cli("export", "definitions", "--output", str(file))
    cli("policy", "orders", *change, "--reason", "more")
    refused = cli("import", "definitions", str(file))
    assert refused.status == 1
    assert "conflict: policy 'orders' has other arguments or another priority" in refused.err


def test_definitions_of_rabbitmq_are_declared_without_its_policies(cli, tmp_path):
    file = tmp_path / "rabbit.json"
    queue = {"name": "q", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "classic"}}
    policy = {
        "vhost": "shop",
        "name": "limit",
        "pattern": "^q",
        "apply-to": "queues",
        "definition": {"max-length": 5},
        "priority": 0,
    }
    exchange = {"name": "e", "vhost": "shop", "type": "direct", "durable": True, "auto_delete": False, "internal": False}
    file.write_text(json.dumps({"rabbitmq_version": "4.0.3", "queues": [queue], "exchanges": [exchange], "policies": [policy]}))
    refused = cli("import", "definitions", str(file))
    assert (refused.status, refused.out) == (1, "")
    assert "policy 'limit' is RabbitMQ's, with a regular expression" in refused.err
    assert cli("queues", "--json").out == ""
    done = cli("import", "definitions", str(file), "--only", "queues", "--only", "exchanges")
    assert done == (0, "1 exchange, 1 queue, 0 bindings, 0 policies are declared; 0 are there already\n", "")


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("[]", "these are no definitions"),
        ("{", "is no JSON"),
        ('{"queues": [{"name": "q", "arguments": {"x-max-length": -1}}, {"name": ""}]}', "queue name '' is empty"),
        ('{"queues": [{"name": "q", "vhost": "a"}, {"name": "p", "vhost": "b"}]}', "2 virtual hosts ('a', 'b')"),
        ('{"exchanges": [{"name": "e", "type": "odd"}]}', "type of exchange 'e' is 'odd'"),
        (
            '{"bindings": [{"source": "a", "destination": "b", "destination_type": "exchange"}]}',
            "the binding of exchange 'a' to 'b' is one between exchanges",
        ),
    ],
)
def test_a_file_that_cannot_be_declared_says_why(cli, tmp_path, document, text):
    file = tmp_path / "definitions.json"
    file.write_text(document)
    refused = cli("import", "definitions", str(file))
    assert (refused.status, refused.out) == (1, "")
    assert text in refused.err
