"""Arguments of queues, consumers and messages that have no effect: refused, or named once in a warning."""

import kombu
import pytest
from kombu.exceptions import ChannelError

from celery_redis_plus.errors import InvalidArgument
from tests.support.arguments import NO_EFFECT_ON_FANOUT, forget_reports
from tests.support.inbox import publish


@pytest.fixture
def channel(broker_url, monkeypatch):
    forget_reports(monkeypatch)
    with kombu.Connection(broker_url) as connection:
        yield connection.channel()


# ---- messages


@pytest.mark.parametrize(("name", "value"), [("track", True), ("ack_timeout", 5)])
def test_options_of_our_own_publish_are_refused_elsewhere(name, value, channel, redis_client):
    channel.queue_declare("q")
    with pytest.raises(InvalidArgument, match=rf"publish option '{name}' is {value}, .* allowed in celery_redis_plus.publish"):
        kombu.Producer(channel).publish("x", routing_key="q", **{name: value})

    assert redis_client.zcard("queue:{q}") == 0


def test_an_unknown_option_is_named_once_and_the_message_published(channel, redis_client, caplog):
    channel.queue_declare("q")
    for _ in range(2):
        kombu.Producer(channel).publish("x", routing_key="q", expiratoin="5")

    (message,) = caplog.messages
    assert "publish option 'expiratoin' ('5') is unknown" in message
    assert "Did you mean 'expiration'?" in message
    assert redis_client.zcard("queue:{q}") == 2


def test_properties_of_amqp_and_options_of_celery_say_nothing(channel, caplog):
    channel.queue_declare("q")
    kombu.Producer(channel).publish(
        "x", routing_key="q", expiration=9, priority=3, message_id="1", app_id="a", type="t", timestamp=1, correlation_id="c",
        reply_to="r", delivery_mode=2, periodic_task_name="beat", headers={"stamped_headers": ["tenant"]}, tenant="t",
    )  # fmt: skip

    assert caplog.messages == []


def test_immediate_is_refused_as_rabbitmq_does(channel):
    channel.queue_declare("q")
    with pytest.raises(ChannelError, match="immediate=True") as refused:
        kombu.Producer(channel).publish("x", routing_key="q", immediate=True)

    assert refused.value.code == 540


# ---- names and tables


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda channel: channel.exchange_declare(5), "exchange name 5 is of type int; allowed is a str"),
        (lambda channel: channel.exchange_declare(["e"], passive=True), "exchange name"),
        (lambda channel: channel.exchange_declare("e" * 5000), "has 5000 bytes; allowed is a str of 1 to 4096 bytes"),
        (lambda channel: channel.exchange_declare("e", 5), "type of exchange 'e' is 5; allowed are 'direct'"),
        (
            lambda channel: channel.exchange_declare("e", arguments=[1]),
            "'arguments' of exchange 'e' is .1. of type list; allowed is",
        ),
        (lambda channel: channel.exchange_delete(5), "exchange name 5"),
        (
            lambda channel: channel.queue_declare("new", arguments="x"),
            "'arguments' of queue 'new' is 'x' of type str; allowed is",
        ),
        (lambda channel: channel.queue_bind("q", 5, "k"), "exchange name 5"),
        (lambda channel: channel.queue_bind("q", "amq.direct", 5), "routing key 5 is of type int; allowed is a str of 0 to 4096"),
        (lambda channel: channel.queue_bind("q", "amq.direct", b"k"), "routing key b'k' is of type bytes"),
        (lambda channel: channel.queue_bind("q", "amq.direct", "k", [1]), "'arguments' of the binding of queue 'q'"),
        (lambda channel: channel.queue_unbind("q", 5, "k"), "exchange name 5"),
        (lambda channel: channel.queue_unbind("q", "amq.direct", 5), "routing key 5"),
        (lambda channel: kombu.Producer(channel).publish("x", exchange=5, routing_key="k"), "exchange name 5"),
        (lambda channel: kombu.Producer(channel).publish("x", exchange="amq.direct", routing_key=5), "routing key 5"),
        (lambda channel: channel.fanout_subscribers(5), "exchange name 5"),
        (lambda channel: channel.get_table(5), "exchange name 5"),
    ],
)
def test_a_name_or_table_of_a_wrong_type_is_refused_before_anything_is_stored(channel, redis_client, call, told):
    channel.queue_declare("q")
    before = sorted(redis_client.keys("*"))
    with pytest.raises(InvalidArgument, match=told):
        call(channel)
    assert sorted(redis_client.keys("*")) == before


# ---- consumers


@pytest.mark.parametrize(("name", "value"), [("x-browze", True), ("x-selector", "a > 1"), ("x-priorty", 3)])
def test_an_unknown_consumer_argument_is_refused(name, value, channel):
    channel.queue_declare("q")
    with pytest.raises(
        InvalidArgument,
        match=rf"argument '{name}' of a consumer of queue 'q' is {value!r}.*allowed are 'x-priority', 'x-browse', 'x-filter'",
    ):
        channel.basic_consume("q", callback=print, arguments={name: value})

    assert channel.queue_declare("q", passive=True).consumer_count == 0


def test_a_consumer_argument_that_changes_no_delivery_is_named_once(channel, caplog):
    channel.queue_declare("q")
    for tag in "ab":
        channel.basic_consume("q", callback=print, consumer_tag=tag, arguments={"x-cancel-on-ha-failover": True, "x-priority": 1})

    (message,) = caplog.messages
    assert "'x-cancel-on-ha-failover' of a consumer of queue 'q' is True, and has no effect" in message


# ---- queues


def test_an_unknown_queue_argument_is_named_once_for_each_queue(channel, caplog):
    for _ in range(2):
        channel.queue_declare("a", arguments={"x-queue-mode": "lazy"})
        channel.queue_declare("b", arguments={"x-queue-mode": "lazy"})

    assert len(caplog.messages) == 2
    for queue, message in zip("ab", caplog.messages, strict=True):
        assert f"argument 'x-queue-mode' of queue '{queue}' is 'lazy', which is unknown here and has no effect" in message
        assert "x-max-length" in message


def test_a_misspelled_queue_argument_is_refused(channel):
    with pytest.raises(InvalidArgument, match=r"argument 'x-max-lenght' of queue 'q' is 5, .* did you mean 'x-max-length'"):
        channel.queue_declare("q", arguments={"x-max-lenght": 5})


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_queue_types_of_work_queues_say_nothing(kind, channel, caplog):
    channel.queue_declare("q", arguments={"x-queue-type": kind})

    assert caplog.messages == []


def test_a_stream_queue_is_refused(channel):
    with pytest.raises(
        InvalidArgument, match="argument 'x-queue-type' of queue 'q' is 'stream'; allowed are 'classic', 'quorum'"
    ):
        channel.queue_declare("q", arguments={"x-queue-type": "stream"})


# ---- queues of fanout exchanges

VALUES = {
    "x-dead-letter-exchange": "dlx",
    "x-dead-letter-routing-key": "k",
    "x-retry-policy": "constant first=5",
    "x-single-active-consumer": True,
    "x-event-log": True,
}


@pytest.mark.parametrize("name", NO_EFFECT_ON_FANOUT)
def test_an_argument_that_broadcasts_do_not_heed_is_named_once(name, channel, caplog):
    more = {"x-dead-letter-routing-key": {"x-dead-letter-exchange": "d"}, "x-delayed-retry-max": {"x-delayed-retry-min": 5}}
    channel.exchange_declare("f", "fanout")
    channel.queue_declare("q", arguments={name: VALUES.get(name, 9), **more.get(name, {})})
    for key in "ab":
        channel.queue_bind("q", "f", key)

    found = [message for message in caplog.messages if f"argument '{name}'" in message]
    assert len(found) == 1
    assert "queue 'q', which is bound to the fanout exchange 'f', has no effect on broadcasts" in found[0]


@pytest.mark.parametrize(
    "given",
    [
        {"x-accept-types": ["order"]},
        {"x-max-pending": 2},
        {"x-max-pending": 2, "x-throttle": True},
        {"x-max-length": 1, "x-overflow": "reject-publish"},
        {"x-max-length": 1, "x-overflow": "block"},
    ],
)
def test_a_limit_that_publishers_count_on_is_refused_on_a_fanout(given, channel):
    channel.exchange_declare("f", "fanout")
    channel.queue_declare("q", arguments=given)
    with pytest.raises(
        ChannelError, match=r"PRECONDITION_FAILED.*of queue 'q'.*fanout exchange 'f'.*arguments of the exchange"
    ) as refused:
        channel.queue_bind("q", "f")

    assert refused.value.code == 406
    assert list(channel.list_bindings()) == []


def test_celerys_remote_control_says_nothing(channel, caplog):
    channel.exchange_declare("celery.pidbox", "fanout")
    channel.queue_declare("w.celery.pidbox", auto_delete=True, arguments={"x-message-ttl": 300_000, "x-expires": 10_000})
    channel.queue_bind("w.celery.pidbox", "celery.pidbox")
    publish(channel, "other", "x")

    assert caplog.messages == []
