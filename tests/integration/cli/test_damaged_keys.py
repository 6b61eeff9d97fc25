"""Whatever the keys of one queue hold, what operators look at shows the other queues.

Each kind of key that a queue has (`key_descriptions.py`) is replaced by one of another type, and each field of its record, and of
its consumers' (`record_fields.py`), by a text that is neither number nor name. So a new key, or a new field, has its test.
"""

from __future__ import annotations

import kombu
import pytest
from field_descriptions import CONSUMER_FIELDS, QUEUE_FIELDS
from key_descriptions import OF_A_QUEUE

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.cli.metrics import BrokerCollector
from celery_redis_plus.keys import Keys
from tests.support.inbox import Inbox, publish
from tests.support.web_page import web_page

pytestmark = pytest.mark.same_everywhere

BAD = Keys().queue("bad")
#: A member that is no text.
ODD = b"\xff\xfe"
#: Keys of a queue whose names are known beforehand, or have the consumer's id.
KINDS = [
    one.pattern
    for one in OF_A_QUEUE
    if not any(word in one.key for word in (b"NUMBER", b"PUBLISHER", b"PRODUCER", b"TEXT", b"TASK"))
]
COMMANDS = (
    *("queues", "queues good", "queues --json", "consumers", "counters *", "counters good", "scheduled", "doctor", "check"),
    *("dead-letters list good", "messages list good", "messages show id-good", "subscribers"),
)
#: Those that may say nothing of a queue in which all is well.
SILENT = ("doctor", "check", "dead-letters list good", "subscribers")
PAGES = ("/", "/consumers", "/dead-letters", "/scheduled", "/queue?name=good", "/search?q=id-good")


@pytest.fixture
def scene(connect, redis_client):
    """Two queues, each with a message in each state, and a consumer."""
    channel = connect().channel()
    arguments = {"x-max-length": 100, "x-event-log": True, "x-max-unacked": 5}
    for name in ("bad", "good"):
        queue = kombu.Queue(name, durable=True, queue_arguments=arguments)
        inbox = Inbox(connect().channel(), queue, prefetch=2, ack=False)
        publish(channel, name, "1", "2", "3", headers={"task": "t", "id": f"id-{name}"})
        publish(channel, name, "later", headers={"task": "t", "id": f"later-{name}"}, eta=4_000_000_000)
        inbox.drain(2)
        inbox.messages[0].reject()
        inbox.channel.session.commands.command("PING")


def all_that_fail(cli, broker_url):
    failed = []
    for command in COMMANDS:
        printed = cli(*command.split())
        if printed.status > 1 or (command not in SILENT and "good" not in printed.out) or "Traceback" in printed.err:
            failed.append((command, printed.status, printed.err[-300:]))
    collector = BrokerCollector(lambda: BrokerAdmin(broker_url), ())
    shown = {sample.labels.get("queue") for family in collector.collect() for sample in family.samples}
    collector.close()
    if "good" not in shown:
        failed.append(("exporter", shown))
    with web_page(broker_url) as page:
        for path in PAGES:
            answer = page.get(path)
            # A search leads to what it has found.
            if answer.status not in (200, 303) or "good" not in (answer.headers.get("Location") or answer.text):
                failed.append((path, answer.status, answer.text[-300:]))
    return failed


@pytest.mark.sample(12)
@pytest.mark.parametrize("pattern", KINDS)
def test_a_key_of_another_type(scene, cli, redis_client, broker_url, pattern):
    consumers, tags = redis_client.zrange(BAD.consumers, 0, -1), redis_client.zrange(BAD.index, 0, -1)
    key = pattern.encode().replace(b"{Q}", b"{bad}").replace(b"CONSUMER", consumers[0]).replace(b"TAG", tags[0])
    redis_client.delete(key)
    redis_client.set(key, "foreign")
    assert all_that_fail(cli, broker_url) == []


@pytest.mark.parametrize("fields", [names[at::6] for names in [list(QUEUE_FIELDS)] for at in range(6)], ids=" ".join)
def test_damaged_fields_of_its_record(scene, cli, redis_client, broker_url, fields):
    redis_client.hset(BAD.meta, mapping=dict.fromkeys(fields, "x"))
    assert all_that_fail(cli, broker_url) == []


def test_damaged_fields_of_a_consumer(scene, cli, redis_client, broker_url):
    (consumer,) = redis_client.zrange(BAD.consumers, 0, -1)
    redis_client.hset(BAD.consumer + consumer, mapping=dict.fromkeys(CONSUMER_FIELDS, "x"))
    assert all_that_fail(cli, broker_url) == []


@pytest.mark.parametrize("place", ["ready", "delayed", "index", "dead"])
def test_a_member_that_is_no_text_is_passed_over(cli, scene, redis_client, broker_url, place):
    redis_client.zadd(getattr(BAD, place), {ODD: 5})
    assert all_that_fail(cli, broker_url) == []
    for command in ("dead-letters list bad", "dead-letters groups bad", "messages list bad", "dead-letters replay bad --all"):
        assert (cli(*command.split()).status, command) == (0, command)
    # Maintenance removes what has no message.
    assert set(redis_client.zrange(BAD.dead, 0, -1)) <= {ODD}
