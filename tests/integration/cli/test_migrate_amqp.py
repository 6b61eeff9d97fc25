"""`celery-redis-plus migrate --from amqp://…`, and what takes messages there; on kombu's in-memory broker, and on RabbitMQ.

RabbitMQ is used where the environment variable CRP_TEST_AMQP_URL names one.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import kombu
import pytest

from celery_redis_plus.cli.broker_admin import BrokerAdmin
from celery_redis_plus.transport.amqp_source import AmqpSource
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

RABBITMQ = os.environ.get("CRP_TEST_AMQP_URL")
needs_rabbitmq = pytest.mark.skipif(RABBITMQ is None, reason="CRP_TEST_AMQP_URL names no RabbitMQ")


#: kombu's in-memory broker does not return what is not acked.
on_rabbitmq_only = pytest.mark.parametrize("source_url", [pytest.param(RABBITMQ, marks=needs_rabbitmq)], indirect=True)


@pytest.fixture(params=["memory://", pytest.param(RABBITMQ, marks=needs_rabbitmq)], ids=["memory", "rabbitmq"])
def source_url(request):
    return request.param


@pytest.fixture
def there(source_url):
    """A channel there, with the empty queue `shop`, which goes with the test."""
    with kombu.Connection(source_url) as connection:
        channel = connection.default_channel
        declare_priority_queue(channel)
        yield channel


def declare_priority_queue(channel):
    channel.queue_delete("shop")
    kombu.Queue("shop", queue_arguments={"x-max-priority": 9})(channel).declare()
    # The in-memory broker deletes bound queues only.
    channel.queue_purge("shop")


@pytest.fixture
def importer(source_url, broker_url):
    with AmqpSource(source_url) as source, BrokerAdmin(broker_url) as admin:
        yield admin.amqp_importer(source)


def take(importer, *names):
    return sum(importer.take(names or ["shop"], lambda: False))


def waits(channel, count):
    wait_until(lambda: channel.queue_declare("shop", passive=True).message_count == count, 10)


def test_messages_come_with_headers_properties_and_time(there, channel, importer):
    declare(channel, "shop")
    due = datetime.now(UTC) + timedelta(hours=1)
    publish(there, "shop", {"n": 1}, headers={"id": "1", "task": "shop.pay"}, correlation_id="1", reply_to="answers", priority=5)
    publish(there, "shop", {"n": 2}, headers={"id": "2", "task": "shop.pay", "eta": due.isoformat()})
    publish(there, "shop", {"n": 3}, headers={"id": "3"}, expiration=60)
    waits(there, 3)

    assert importer.queues() == ["shop"]
    assert (importer.status(["shop"])[0].left, take(importer)) == (3, 3)

    waits(there, 0)
    moved = importer.report.of("shop")
    assert (moved.ready, moved.delayed, importer.report.left) == (2, 1, 0)
    first, second = channel.basic_get("shop"), channel.basic_get("shop")
    assert (first.payload, first.headers["id"]) == ({"n": 1}, "1")
    assert {name: first.properties[name] for name in ("correlation_id", "reply_to", "priority")} == {
        "correlation_id": "1", "reply_to": "answers", "priority": 5,
    }  # fmt: skip
    assert (second.payload, second.properties["expiration"]) == ({"n": 3}, "60000")


def test_a_body_of_bytes_stays_as_it_is(there, channel, importer):
    declare(channel, "shop")
    producer = kombu.Producer(there)
    producer.publish(bytes(range(256)), routing_key="shop", content_type="application/data", content_encoding="binary")
    waits(there, 1)
    assert take(importer) == 1
    message = channel.basic_get("shop")
    assert (bytes(message.body), message.content_type, message.content_encoding) == (
        bytes(range(256)), "application/data", "binary",
    )  # fmt: skip


def test_what_has_no_queue_here_stays_there(there, importer):
    publish(there, "shop", 1)
    waits(there, 1)
    assert take(importer) == 0
    assert importer.report.left == 1
    waits(there, 1)


def test_what_cannot_be_read_stays_there_and_is_told_in_each_pass(there, channel, importer, source_url):
    declare(channel, "shop")
    publish(there, "shop", 1, headers={"id": "1", "task": "shop.pay", "eta": "soon"})
    publish(there, "shop", 2)
    waits(there, 2)
    for expected in (1, 0):
        importer.report.forget_left()
        assert take(importer) == expected
        assert importer.report.left == 1
        assert importer.report.of("shop").reasons


@on_rabbitmq_only
def test_a_body_in_another_charset_stays_as_it_is(there, channel, importer):
    declare(channel, "shop")
    kombu.Producer(there).publish(
        "é".encode("latin-1"), routing_key="shop", content_type="text/plain", content_encoding="latin-1"
    )
    waits(there, 1)
    assert take(importer) == 1
    assert channel.basic_get("shop").payload == "é"


@on_rabbitmq_only
def test_a_queue_that_is_not_there_returns_no_message_that_is_held(there, channel, importer):
    declare(channel, "shop")
    publish(there, "shop", 1, headers={"id": "1", "task": "shop.pay", "eta": "soon"})
    waits(there, 1)
    assert take(importer, "shop", "elsewhere") == 0
    assert there.queue_declare("shop", passive=True).message_count == 0


def test_what_is_no_option_of_the_url_is_named(cli):
    printed = cli("migrate", "--from", "amqp://guest:secret@127.0.0.1:1//?odd=1", "-Q", "shop")
    assert printed.status in {1, 3}
    assert "secret" not in printed.err


@on_rabbitmq_only
def test_a_message_that_was_not_acked_comes_again(there, channel, source_url):
    publish(there, "shop", 1)
    waits(there, 1)
    with AmqpSource(source_url) as source:
        assert source.get("shop") is not None
    waits(there, 1)


def test_a_queue_that_is_not_there_is_told(channel, importer, there):
    assert take(importer, "elsewhere") == 0
    assert importer.report.of("elsewhere").reasons == ["the AMQP broker has no such queue"]


def test_priorities_in_another_order_need_a_word(there, source_url, broker_url, channel):
    declare(channel, "shop")
    url = f"{broker_url}?priority_order=low-first"
    publish(there, "shop", 1, priority=5)
    waits(there, 1)
    with AmqpSource(source_url) as source, BrokerAdmin(url) as admin, pytest.raises(ValueError, match="highest number first"):
        take(admin.amqp_importer(source))


def test_the_broker_that_does_not_answer_is_named(cli):
    printed = cli("migrate", "--from", "amqp://guest:secret@127.0.0.1:1//", "-Q", "shop")
    assert printed.status == 3
    assert "the AMQP broker at amqp://guest:**@127.0.0.1:1//" in printed.err
    assert "secret" not in printed.err


@pytest.mark.parametrize("option", [("--reverse",), ("--take-unacked",), ("--from-prefix", "x")])
def test_options_of_kombus_redis_transport_are_refused(cli, option):
    printed = cli("migrate", "--from", "amqp://127.0.0.1:1//", *option)
    assert printed.status == 2
    assert "an AMQP broker" in printed.err


@needs_rabbitmq
def test_the_command_moves_and_reports(cli, channel):
    with kombu.Connection(RABBITMQ) as connection:
        there = connection.default_channel
        declare_priority_queue(there)
        publish(there, "shop", *range(250))
        waits(there, 250)
        assert cli("migrate", "--from", RABBITMQ, "-Q", "shop", "--declare", "shop", "--status", "--json").json["left"] == 250
        printed = cli("migrate", "--from", RABBITMQ, "-Q", "shop", "--declare", "shop", "--json")
        assert (printed.status, printed.json["ready"], printed.json["left"]) == (0, 250, 0)
        inbox = Inbox(channel, "shop")
        inbox.drain(250)
        assert inbox.bodies == list(range(250))
