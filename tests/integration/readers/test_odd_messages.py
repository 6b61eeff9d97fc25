"""Whatever one message holds, who reads it goes on with the next: it is a dead letter, or it is passed over and counted.

Each reader of stored messages gets all of `tests/support/odd_messages.py`, with a good message before and one behind them.
`tests/unit/test_readers.py` finds the places that read, and wants each of them to be known.
"""

from __future__ import annotations

import io
import itertools
import logging
from contextlib import redirect_stderr, redirect_stdout

import celery
import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.cli.main import main
from celery_redis_plus.integration.revoked_results import mark_revoked
from celery_redis_plus.integration.scheduled import held_by_broker
from celery_redis_plus.stored_message import BODY_SEPARATOR
from celery_redis_plus.transport.browsing import browse
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.odd_messages import payloads
from tests.support.waiting import wait_until
from tests.support.web_page import web_page

ODD = payloads()
FIRST, LAST = "first", "last"
LATER = {"headers": {"x-delay": 3_600_000, "task": "shop.pay", "id": "later"}}


@pytest.fixture
def fill(channel, redis_client):
    """Let a queue hold the odd messages between two good ones."""

    def put(queue, *, delayed=False, **arguments):
        declare(channel, queue, arguments=arguments)
        if delayed:
            publish(channel, queue, FIRST, *map(str, range(len(ODD))), LAST, **LATER)
        else:
            publish_as_one(channel, queue, FIRST, *map(str, range(len(ODD))), LAST)
        of = channel.session.keys.queue(queue)
        tags = redis_client.zrange(of.delayed if delayed else of.ready, 0, -1)
        with redis_client.pipeline() as pipeline:
            for tag, payload in zip(tags[1:-1], ODD, strict=True):
                pipeline.hset(of.message + tag, "payload", payload)
            pipeline.execute()
        return of

    return put


def publish_as_one(channel, queue, *bodies):
    """Publish texts to a queue, a hundred with each call of the server."""
    batch = channel.create_publish_batch(100)
    for number, body in enumerate(bodies):
        properties = {"delivery_tag": str(number)}
        message = channel.prepare_message(body, content_type="text/plain", content_encoding="utf-8", properties=properties)
        batch.publish(message, routing_key=queue)
    batch.flush()


@pytest.fixture
def dead(fill, redis_client):
    """Let the queue `q` have the odd messages as its dead letters."""
    of = fill("q")
    kill(redis_client, of, of.dead)
    return of


def kill(redis_client, of, place):
    """Let the ready messages be dead ones, in the sorted set `place`: a moment ago, or the sweep removes what is too old."""
    seconds, _ = redis_client.time()
    with redis_client.pipeline() as pipeline:
        for number, tag in enumerate(redis_client.zrange(of.ready, 0, -1)):
            died = seconds * 1000 - number
            pipeline.zadd(place, {tag: died})
            pipeline.hset(of.message + tag, mapping={"died": died, "reason": "rejected"})
        pipeline.delete(of.ready)
        pipeline.execute()


def inbox_of(channel, queue):
    """Consume; a body that cannot be decompressed is the application's, as over AMQP: this one takes it."""
    inbox = Inbox(channel, queue)
    inbox.consumer.on_decode_error = lambda message, _: inbox.consumer.on_message(message)
    return inbox


def take_up_to_the_last(inbox):
    """Take deliveries until the last good message came; return the bodies of all, not decoded."""
    wait_until(lambda: inbox.pump(1) and inbox.messages[-1].body == b"last", 60, interval_s=0)
    return [message.body for message in inbox.messages]


def run(broker_url, *arguments):
    """Run a command, which may not fail; return the lines that it prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([*arguments, "--url", broker_url])
    # `check` finds damaged messages, and a migration leaves those that cannot be read: both say so by 1.
    assert status in (0, None) or (status == 1 and arguments[0] in ("check", "migrate")), err.getvalue()[-2000:]
    return out.getvalue().splitlines()


# -- consumers ---------------------------------------------------------------------------------------------------------------


def test_a_consumer_gets_what_can_be_read_and_the_rest_are_dead_letters(fill, connect, redis_client):
    of = fill("q")
    inbox = inbox_of(connect().channel(), "q")
    got = take_up_to_the_last(inbox)
    assert (got[0], got[-1]) == (b"first", b"last")
    wait_until(lambda: redis_client.zcard(of.index) == 0)
    dead = redis_client.zrange(of.dead, 0, -1)
    assert len(got) + len(dead) == len(ODD) + 2
    assert inbox.channel.session.service.figures()["unreadable_messages"] == len(dead)
    errors = {redis_client.hget(of.message + tag, "error").decode().partition("\t")[0] for tag in dead}
    for text in ("InvalidOperation: ", "RecursionError: ", "GoneError: no object", "UnspeakableError: <", "JSONDecodeError: "):
        assert any(error.startswith(text) for error in errors), text


def test_single_messages_are_got(fill, connect, redis_client):
    of = fill("q")
    channel = connect().channel()
    got = []
    while (message := channel.basic_get("q")) is not None:
        message.ack()
        got.append(message.body)
    assert got[-1] == b"last"
    wait_until(lambda: redis_client.zcard(of.index) == 0)
    assert len(got) + redis_client.zcard(of.dead) == len(ODD) + 2


def test_a_browsing_consumer_passes_over_what_cannot_be_read(fill, connect, redis_client):
    of = fill("q")
    connection = connect()
    seen = []
    connection.channel().basic_consume("q", callback=seen.append, arguments={"x-browse": True})

    def last_seen():
        connection.drain_events(timeout=5)
        return seen[-1].body == b"last"

    wait_until(last_seen, 60, interval_s=0)
    service = connection.default_channel.session.service
    # One without a body counts as gone.
    without_body = sum(BODY_SEPARATOR not in payload for payload in ODD)
    assert len(seen) + service.figures()["unreadable_messages"] == len(ODD) + 2 - without_body
    assert redis_client.zcard(of.ready) == len(ODD) + 2


def test_a_subscriber_passes_over_broadcasts_that_cannot_be_read(connect, redis_client, caplog):
    channel = connect().channel()
    exchange = kombu.Exchange("news", type="fanout", durable=False)
    inbox = inbox_of(connect().channel(), kombu.Queue("reader", exchange, durable=False, auto_delete=True))
    producer = kombu.Producer(channel, exchange=exchange)
    keys = channel.session.fanout_keys("news")
    producer.publish(FIRST)
    for number, payload in enumerate([*ODD, b""], start=2):
        redis_client.xadd(keys.stream, {"head": f"{number} x ", "payload": payload})
    redis_client.xadd(keys.stream, {"head": "no number x", "payload": b"x"})
    redis_client.xadd(keys.stream, {"other": "field"})
    redis_client.hset(keys.meta, "count", len(ODD) + 2)
    producer.publish(LAST)
    got = take_up_to_the_last(inbox)
    assert got[0] == b"first"
    unreadable = inbox.channel.session.service.figures()["unreadable_messages"]
    assert len(got) + unreadable == len(ODD) + 3
    lines = [record for record in caplog.records if "cannot be read: it is passed over" in record.getMessage()]
    assert len(lines) == len({record.exc_info[1].error.__class__ for record in lines}), "once for each kind of error"


# -- dead letters ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["direct", "topic", "headers", "fanout", "default"])
def test_a_dead_letter_exchange_gets_what_can_be_sent_on_and_the_rest_are_kept(kind, fill, connect, redis_client):
    setup = connect().channel()
    declare(setup, "graves")
    arguments = {"x-dead-letter-exchange": ""}
    if kind != "default":
        arguments = {"x-dead-letter-exchange": "deaths", "x-dead-letter-routing-key": "a.b"}
        setup.exchange_declare("deaths", kind, durable=True)
        if kind != "fanout":
            setup.queue_bind("graves", "deaths", "a.b", arguments={"task": "shop.pay"} if kind == "headers" else None)
    of = fill("q", **arguments)
    kill(redis_client, of, of.dlx_outbox)
    # Its consumer's process sweeps the queue and sends its dead messages on.
    inbox = inbox_of(connect().channel(), kombu.Queue("q", durable=True, queue_arguments=arguments))

    def settled():
        inbox.pump(0.1)
        return redis_client.zcard(of.dlx_outbox) == 0

    wait_until(settled, 60, interval_s=0)
    service = inbox.channel.session.service
    assert not service.runner.failing
    assert service.figures()["failed_tasks"] == 0
    kept = redis_client.zcard(of.dead)
    if kind in ("direct", "topic"):
        forwarded = redis_client.zcard(setup.session.keys.queue("graves").ready)
        assert forwarded + kept == len(ODD) + 2
        errors = [redis_client.hget(of.message + tag, "error") for tag in redis_client.zrange(of.dead, 0, -1)]
        assert all(error is not None for error in errors)
    else:
        assert kept > 0


def test_dead_letters_are_listed_and_searched(dead, channel, broker_url):
    letters = list(dead_letters_of(channel).all("q"))
    assert len(letters) == len(ODD) + 2
    with BrokerAdmin(broker_url) as admin:
        pages = list(admin.search_dead_letters("q", DeadLetterFilter(task="shop.*")).pages())
    assert sum(len(page) for _, page in pages) > len(ODD) // 2


def test_dead_letters_are_replayed_but_those_that_cannot_be(dead, broker_url, channel, redis_client):
    refused = 0
    with BrokerAdmin(broker_url) as admin:
        for _, page in admin.search_dead_letters("q", DeadLetterFilter()).pages():
            refused += sum(isinstance(outcome, Exception) for outcome in admin.replay_page(page))
    assert redis_client.zcard(dead.ready) == len(ODD) + 2 - refused
    assert redis_client.zcard(dead.dead) == refused < 20


# -- listings ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ready", "delayed"])
def test_messages_are_browsed(state, fill, connection):
    fill("q", delayed=state == "delayed")
    found = list(browse("q", connection=connection, state=state))
    assert len(found) == len(ODD) + 2
    shown = [(one.task, one.task_id, one.routing_key, one.priority) for one in found]
    assert {type(value) for value in itertools.chain(*shown)} <= {str, int, bool, type(None)}


def test_inspect_scheduled_lists_the_tasks_around_it(fill, connection):
    fill("q", delayed=True)
    app = celery.Celery("odd")
    # A page of 16 MB at most is read.
    entries = held_by_broker(connection.transport, ["q"], app=app, hostname="h", limit=5000)
    assert [entries[0]["request"]["id"], entries[-1]["request"]["id"]] == ["later", "later"]
    assert len(entries) > 100


def test_the_results_of_removed_tasks_are_revoked(fill, broker_url, redis_client, caplog):
    # The errors quote lone surrogates, which no report of pytest-xdist can have.
    caplog.set_level(logging.CRITICAL, "celery_redis_plus.integration.revoked_results")
    of = fill("q")
    app = celery.Celery("odd", backend="cache+memory://")
    with BrokerAdmin(broker_url) as admin:
        for tag in redis_client.zrange(of.ready, 0, -1):
            found = admin.queue_messages.read("q", tag.decode())
            assert found is not None
            mark_revoked(app, "q", tag.decode(), *found)


def test_a_broadcast_that_a_tracked_subscriber_did_not_settle_is_kept(channel):
    unroutable = channel.session.unroutable
    for payload in ODD:
        unroutable.keep_for("reader", payload, PublishAttempt(), "ack_timeout")
    assert dead_letters_of(channel).count(UNDELIVERED) == len(ODD)


COMMANDS = {
    "messages list": ("messages", "list", "q", "--limit", "5000"),
    "messages list --json": ("messages", "list", "q", "--limit", "5000", "--json"),
    "messages list --task": ("messages", "list", "q", "--limit", "5000", "--task", "shop.*"),
    "check": ("check", "--queue", "q"),
    "doctor": ("doctor", "--check", "backlog", "--check", "consumers"),
    "messages move": ("messages", "move", "--queue", "q", "--task", "shop.*", "--to", "elsewhere"),
    "migrate --reverse": ("migrate", "--reverse", "--priorities", "keep", "-Q", "q"),
    "messages cancel": ("messages", "cancel", "--queue", "q", "--task", "*", "--yes"),
}
OF_DEAD = {
    "dead-letters list": ("dead-letters", "list", "q", "--limit", "5000"),
    "dead-letters list --json": ("dead-letters", "list", "q", "--limit", "5000", "--json"),
    "doctor": ("doctor", "--check", "dead-letters"),
    "dead-letters delete": ("dead-letters", "delete", "q", "--task", "*", "--yes"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_goes_on_with_the_next_message(command, fill, channel, broker_url):
    fill("q")
    declare(channel, "elsewhere")
    lines = run(broker_url, *COMMANDS[command])
    if command.startswith("messages list") and "--task" not in command:
        assert len(lines) >= len(ODD) + 2


@pytest.mark.parametrize("command", OF_DEAD)
def test_a_command_goes_on_with_the_next_dead_letter(command, dead, broker_url):
    lines = run(broker_url, *OF_DEAD[command])
    if "list" in command:
        assert len(lines) >= len(ODD) + 2


@pytest.mark.parametrize("wanted", ["nobody", 'ü"\\'])
def test_a_task_id_is_looked_for_in_each_message(wanted, fill, broker_url):
    fill("q")
    with BrokerAdmin(broker_url) as admin:
        assert admin.messages.find(wanted, "q") is None
        assert admin.messages.searched.messages == len(ODD) + 2


def test_each_message_is_shown(fill, broker_url, redis_client):
    of = fill("q")
    tags = [tag.decode() for tag in redis_client.zrange(of.ready, 0, -1)]
    with BrokerAdmin(broker_url) as admin:
        for tag in tags:
            assert admin.messages.find(tag, "q") is not None
            assert admin.explain("q", tag).causes
    for tag in tags[:: len(tags) // 20]:
        run(broker_url, "messages", "show", tag, "--queue", "q")


def test_each_dead_letter_is_shown(dead, broker_url, redis_client):
    tags = [tag.decode() for tag in redis_client.zrange(dead.dead, 0, -1)]
    for tag in (*tags[:40], *tags[:: len(tags) // 20]):
        run(broker_url, "dead-letters", "show", "q", tag)


@pytest.mark.parametrize("path", ["/", "/queue", "/scheduled", "/dead-letters", "/search"])
def test_the_pages_show_the_messages_around_it(path, fill, broker_url, redis_client):
    of = fill("q", delayed=path == "/scheduled")
    if path == "/dead-letters":
        kill(redis_client, of, of.dead)
    with web_page(broker_url) as page:
        assert page.get(path, name="q", queue="q", id="1", task="shop.pay").status == 200


@pytest.mark.parametrize("state", ["ready", "dead"])
def test_the_page_of_each_message_is_shown(state, fill, broker_url, redis_client):
    of = fill("q")
    tags = [tag.decode() for tag in redis_client.zrange(of.ready, 0, -1)]
    if state == "dead":
        kill(redis_client, of, of.dead)
    with web_page(broker_url) as page:
        for tag in (*tags[:40], *tags[:: len(tags) // 40]):
            assert page.get("/message", queue="q", id=tag, tag=tag).status == 200
