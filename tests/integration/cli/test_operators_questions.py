"""What an operator wants to do, command by command: rows of the comparison with the tools of other brokers."""

from __future__ import annotations

import json

import kombu
import pytest

from tests.support.inbox import Inbox, declare, publish

#: What somebody wants to do, the lines that do it, and what the last one prints.
ROWS = [
    ("sort, hide, top N", ["queues --sort dead --limit 1"], "orders"),
    ("rates", ["queues --watch --help"], "--watch"),
    ("find a job by its id in any state", ["messages show runs", "messages show dead", "messages show later"], "DELAYED"),
    ("search by arguments", ["messages list orders --text (4711,)"], "1 with '(4711,)' of 3 ready"),
    ("search by workflow", ["messages list orders --text root-1"], "1 with 'root-1' of 3 ready"),
    ("move one waiting job", ["messages move first --to other"], "1 message(s) are moved"),
    ("delete one waiting job", ["messages cancel first --yes"], "1 message(s) are cancelled"),
    ("run a scheduled job now", ["messages reschedule later --in 0"], "has its new time"),
    ("change the priority of a job", ["messages prioritize second 9"], "has priority 9"),
    ("dead letters, newest first", ["dead-letters list orders --newest"], "shop.refund"),
    ("group errors", ["dead-letters groups orders"], "COUNT  TASK"),
    ("running jobs: what, where, since when", ["messages list orders --state unacked"], "HOST AND PID"),
    ("kick a consumer", ["messages kick runs --yes"], "1 message(s) are back"),
    ("pause by pattern", ["pause ord* --reason tests", "resume ord*"], "goes on"),
    ("purge by pattern", ["purge oth* --yes"], "are deleted"),
    ("declare and delete a queue", ["declare new x-max-length=5", "delete new --yes"], "is deleted"),
    ("see a queue's arguments and bindings", ["queue orders"], "x-max-length"),
    ("change limits while it runs", ["policy orders x-rate-limit=50/m --reason tests"], "in force in 1 of 1"),
    ("export definitions", ["export definitions"], '"x-max-length": 100'),
    ("import definitions", ["export definitions --output FILE", "import definitions FILE"], "are there already"),
    ("users, roles", ["web-user ada --help"], "operator"),
    ("URL prefix", ["web --help"], "--url-prefix"),
    ("who did what", ["audit"], "prioritize"),
    ("remove all", ["uninstall --dry-run --force"], "key(s)"),
]


@pytest.fixture
def shop(channel):
    declare(channel, "orders", arguments={"x-max-length": 100})
    declare(channel, "other")
    for number, (id_, task) in enumerate((("dead", "shop.refund"), ("runs", "shop.long"))):
        publish(channel, "orders", number, headers={"task": task, "id": id_})
    queue = kombu.Queue("orders", durable=True, queue_arguments={"x-max-length": 100})
    inbox = Inbox(channel, queue, ack=False, prefetch=2)
    inbox.drain(2)
    inbox.messages[0].reject()
    inbox.consumer.cancel()
    headers = [
        {"task": "shop.pay", "id": "first", "argsrepr": "(4711,)"}, {"task": "shop.pay", "id": "second", "root_id": "root-1"},
        {"task": "shop.pay", "id": "third"}, {"task": "shop.pay", "id": "later", "x-delay": 3_600_000},
    ]  # fmt: skip
    for one in headers:
        publish(channel, "orders", one["id"], headers=one)
    return inbox


def test_each_question_has_its_command(cli, shop, tmp_path):
    for wanted, lines, said in ROWS:
        for line in lines:
            done = cli(*(str(tmp_path / "file.json") if word == "FILE" else word for word in line.split()))
            assert done.status == 0, (wanted, line, done.err)
        assert said in done.out, (wanted, done.out)
    assert json.loads((tmp_path / "file.json").read_text())["policies"][0]["pattern"] == "orders"
