"""A queue's arguments: what is accepted, stored, and called different."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.arguments.argument_rules import ALLOWED, MAX_TTL_MS
from celery_redis_plus.broker.arguments.names import MAX_NAME
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments, check_queue_name
from celery_redis_plus.broker.arguments.retry_policy import POLICY_KINDS
from celery_redis_plus.errors import InvalidArgument, InvalidQueueName

parse = QueueArguments.parse


@pytest.mark.parametrize(
    "name",
    [
        "celery",
        "{braces}",
        "}{",
        "a:b:c",
        "*?[a-z]",
        "new\nline",
        "\x00",
        " ",
        "x" * 1024,
        "日" * 1000,
        "\udc80",
    ],
)
def test_odd_queue_names_are_fine(name):
    assert check_queue_name(name) is name


def test_longest_queue_name():
    assert check_queue_name("x" * MAX_NAME)
    with pytest.raises(InvalidQueueName, match="has 4098 bytes"):
        check_queue_name("é" * (MAX_NAME // 2 + 1))


@pytest.mark.parametrize(
    ("name", "why"),
    [("", "empty"), (None, "NoneType"), (b"q", "bytes"), (5, "int"), ("\ud800", "surrogate")],
)
def test_impossible_queue_name_is_refused_with_what_is_allowed(name, why):
    with pytest.raises(InvalidQueueName, match=rf"{why}.*1 to {MAX_NAME} bytes"):
        check_queue_name(name)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-expires", 1),
        ("x-expires", MAX_TTL_MS),
        ("x-message-ttl", 0),
        ("x-max-priority", 0),
        ("x-max-priority", 255),
        ("x-max-length", 10**12),
        ("x-max-length-bytes", 0),
        ("x-delivery-limit", -1),
        ("x-overflow", "reject-publish"),
        ("x-dead-letter-exchange", ""),
        ("x-single-active-consumer", True),
        ("x-queue-type", "quorum"),
        ("x-unheard-of", {"any": [1, None, b"x"]}),
        ("no-x", 1),
    ],
)
def test_accepted_argument_is_kept_as_it_is(argument, value):
    assert parse("q", arguments={argument: value}).arguments == {argument: value}


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("x-expires", 0, f"of ms from 1 to {MAX_TTL_MS}"),
        ("x-expires", MAX_TTL_MS + 1, "of ms from 1"),
        ("x-expires", True, "of ms from 1"),
        ("x-expires", "1000", "of ms from 1"),
        ("x-expires", 1.5, "of ms from 1"),
        ("x-expires", float("nan"), "finite"),
        ("x-message-ttl", -1, "of ms from 0"),
        ("x-max-priority", 256, "from 0 to 255"),
        ("x-max-priority", -1, "from 0 to 255"),
        ("x-max-priority", "high", "from 0 to 255"),
        ("x-max-length", -1, "from 0"),
        ("x-max-length-bytes", [], "of bytes from 0"),
        ("x-delivery-limit", -2, "from -1"),
        ("x-overflow", "explode", "'drop-head', 'reject-publish'"),
        ("x-overflow", [], "'drop-head'"),
        ("x-dead-letter-exchange", 5, "a str"),
        ("x-single-active-consumer", 1, "true or false"),
        ("x-unheard-of", object(), "None, bool"),
    ],
)
def test_bad_argument_is_refused_naming_queue_argument_value_and_what_is_allowed(argument, value, allowed):
    with pytest.raises(InvalidArgument) as caught:
        parse("tasks", arguments={argument: value})
    text = str(caught.value)
    assert f"argument '{argument}' of queue 'tasks' is " in text
    assert repr(value) in text
    assert allowed in text


def test_dead_letter_routing_key_needs_an_exchange_as_in_rabbitmq():
    with pytest.raises(InvalidArgument, match="'x-dead-letter-routing-key' of queue 'q' is 'k' without"):
        parse("q", arguments={"x-dead-letter-routing-key": "k"})
    both = parse("q", arguments={"x-dead-letter-routing-key": "k", "x-dead-letter-exchange": ""})
    assert (both.dead_letter_exchange, both.dead_letter_routing_key) == ("", "k")


def test_whole_float_becomes_an_int_and_none_counts_as_absent():
    parsed = parse("q", arguments={"x-expires": 10_000.0, "x-max-priority": None})
    assert parsed.arguments == {"x-expires": 10_000}
    assert isinstance(parsed.arguments["x-expires"], int)
    assert parse("q", arguments=None).arguments == {}


def test_later_changes_of_the_users_table_change_nothing():
    table = {"x-max-priority": 5}
    parsed = parse("q", arguments=table)
    table["x-max-priority"] = 9
    assert parsed.max_priority == 5


@pytest.mark.parametrize(
    ("declared", "transient", "ttl_ms"),
    [
        ({}, False, None),
        ({"durable": True}, False, None),
        ({"arguments": {"x-message-ttl": 5}}, False, None),
        ({"auto_delete": True}, True, 60_000),
        ({"exclusive": True}, True, 60_000),
        ({"arguments": {"x-expires": 10_000}}, True, 10_000),
        ({"auto_delete": True, "arguments": {"x-expires": 10_000}}, True, 10_000),
    ],
)
def test_transient_queues_and_their_time_to_live(declared, transient, ttl_ms):
    parsed = parse("q", **declared)
    assert parsed.transient is transient
    assert parsed.ttl_ms(60_000) == ttl_ms


def test_properties_read_the_table():
    parsed = parse("q", arguments={"x-max-priority": 10})
    assert parsed.max_priority == 10
    assert (parsed.dead_letter_exchange, parsed.dead_letter_routing_key) == (None, None)
    assert parse("q").max_priority is None


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"durable": True, "exclusive": True, "auto_delete": True},
        {"arguments": {"x-expires": 5, "x-odd": [b"\xff", None, {"!bytes": 1}], "ü": "\udc80"}},
    ],
)
def test_arguments_come_back_from_their_text(declared):
    parsed = parse("q", **declared)
    back = QueueArguments.decode(parsed.encode().encode())
    assert back.difference(parsed, "q") is None
    assert back.arguments == parsed.arguments
    assert back.encode() == parsed.encode()


def test_text_leaves_out_what_is_false_and_tolerates_what_is_newer():
    assert parse("q").encode() == "{}"
    assert parse("q", durable=1).encode() == '{"durable":true}'
    assert QueueArguments.decode('{"durable":true,"later":[1]}').durable is True


@pytest.mark.parametrize("text", ["", "[]", b"\xff", '{"arguments":[1]}'])
def test_text_that_is_no_record_is_refused(text):
    with pytest.raises(InvalidArgument, match="stored"):
        QueueArguments.decode(text)


@pytest.mark.parametrize(
    ("received", "current", "text"),
    [
        (
            {"x-max-priority": 5},
            {"x-max-priority": 10},
            "'x-max-priority' for queue 'q': received 5 but current is 10",
        ),
        ({"x-max-priority": 5}, {}, "'x-max-priority' for queue 'q': received 5 but current is none"),
        ({}, {"x-expires": 9}, "'x-expires' for queue 'q': received none but current is 9"),
        ({"x-b": 1, "x-a": "s"}, {}, "'x-a' for queue 'q': received 's' but current is none"),
        ({"x-b": True}, {"x-b": 1}, "'x-b' for queue 'q': received true but current is 1"),
        (
            {"x-queue-type": "quorum"},
            {"x-queue-type": "classic"},
            "'x-queue-type' for queue 'q': received 'quorum' but current is 'classic'",
        ),
    ],
)
def test_inequivalent_arguments_are_told_in_rabbitmqs_words(received, current, text):
    difference = parse("q", arguments=received).difference(parse("q", arguments=current), "q")
    assert difference == f"inequivalent arg {text}"


@pytest.mark.parametrize("flag", ["durable", "exclusive", "auto_delete"])
def test_inequivalent_flag_is_told_before_arguments(flag):
    received = parse("q", arguments={"x-a": 1}, **{flag: True})
    expected = f"inequivalent arg '{flag}' for queue 'q': received true but current is false"
    assert received.difference(parse("q"), "q") == expected


@pytest.mark.parametrize(
    ("received", "current"),
    [
        ({}, {}),
        ({"x-max-priority": 5.0}, {"x-max-priority": 5}),
        ({"x-queue-type": "classic"}, {}),
        ({"x-a": None}, {}),
        ({"x-a": (1, 2)}, {"x-a": [1, 2]}),
    ],
)
def test_equivalent_arguments(received, current):
    assert parse("q", arguments=received).difference(parse("q", arguments=current), "q") is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"x-message-ttl": 1_000}, True),
        ({"x-message-ttl": 1_000, "x-expires": 1_001}, True),
        ({"x-message-ttl": 1_000, "x-expires": 1_000}, False),
        ({"x-expires": 1_000}, False),
        ({"x-message-ttl": 1_000, "x-expires": 1_000, "x-dead-letter-exchange": "x"}, True),
    ],
)
def test_a_queue_that_goes_before_its_messages_expire_needs_no_sweep_without_a_consumer(given, expected):
    assert QueueArguments(durable=True, arguments=given).always_swept is expected


def test_the_allowed_retry_policies_are_those_that_there_are():
    """They are spelled there, so that a publisher does not load the module of the policies."""
    assert f"of the kinds {', '.join(POLICY_KINDS)}, or" in ALLOWED["x-retry-policy"]
