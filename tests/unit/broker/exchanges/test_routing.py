"""Routing by AMQP 0-9-1's rules. Cases come from the specification and from RabbitMQ's behaviour."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redis_plus.broker.exchanges.routing import Binding, RoutingTable, check_binding, decode_binding, encode_binding
from celery_redis_plus.errors import InvalidArgument

ODD_NAMES = [
    "",
    "q",
    "{q}",
    "}{",
    "a:b*?[x]",
    "line\nfeed\x00",
    "müller-日本",
    "\udc80raw",
    "x" * 1024,
    '"\\',
]


# --- direct and fanout


def test_direct_exchange_routes_on_equal_keys_only():
    table = RoutingTable("direct", [Binding("a", "k"), Binding("b", "K"), Binding("c", "k"), Binding("d", "*")])
    assert table.route("k") == ("a", "c")
    assert table.route("*") == ("d",)
    assert table.route("other") == ()


def test_fanout_exchange_routes_to_every_queue_whatever_the_key():
    table = RoutingTable("fanout", [Binding("b", "k"), Binding("a"), Binding("b", "l")])
    assert table.route("whatever", {"x": 1}) == ("b", "a")


@pytest.mark.parametrize("exchange_type", ["direct", "fanout", "headers", "topic"])
def test_queue_bound_twice_gets_a_message_once_and_order_is_that_of_the_bindings(exchange_type):
    bindings = [Binding("z", "k"), Binding("a", "k"), Binding("z", "k", {"n": None}), Binding("m", "k")]
    assert RoutingTable(exchange_type, bindings).route("k", {"n": 1}) == ("z", "a", "m")


@pytest.mark.parametrize("exchange_type", ["direct", "fanout", "headers", "topic"])
def test_exchange_without_bindings_routes_nowhere(exchange_type):
    assert RoutingTable(exchange_type, []).route("k") == ()


def test_unknown_exchange_type_is_refused_and_the_allowed_ones_named():
    with pytest.raises(InvalidArgument, match=r"'x-delayed-message'.*'direct', 'fanout', 'headers', 'topic'"):
        RoutingTable("x-delayed-message", [])


# --- headers


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        # all is the default
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, None, False),
        ({}, None, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "nonsense", "a": 1, "b": 2}, {"a": 1}, False),
        # any
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 3}, False),
        ({"x-match": "any"}, {"a": 1}, False),
        # void asks for presence
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"b": 1}, False),
        ({"x-match": "any", "a": None, "b": 1}, {"a": 0}, True),
        ({"a": 1}, {"a": None}, False),
        # x- arguments count only under …-with-x
        ({"x-tenant": "t", "a": 1}, {"a": 1}, True),
        ({"x-match": "any", "x-tenant": "t"}, {"x-tenant": "t"}, False),
        ({"x-match": "all-with-x", "x-tenant": "t", "a": 1}, {"a": 1}, False),
        ({"x-match": "all-with-x", "x-tenant": "t", "a": 1}, {"a": 1, "x-tenant": "t"}, True),
        ({"x-match": "any-with-x", "x-tenant": "t", "a": 1}, {"x-tenant": "t"}, True),
        ({"x-match": "all-with-x"}, {"x-match": "any"}, True),
        # values
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": [1, {"b": True}]}, {"a": (1, {"b": True})}, True),
        ({"a": [1, {"b": True}]}, {"a": [1, {"b": 1}]}, False),
    ],
)
def test_headers_exchange(arguments, headers, expected):
    table = RoutingTable("headers", [Binding("q", "ignored", arguments)])
    assert table.route("another key", headers) == (("q",) if expected else ())


def test_bad_x_match_is_refused_at_bind_time_with_the_allowed_values():
    with pytest.raises(InvalidArgument, match=r"'x-match'.*'q'.*'some'.*'any-with-x'"):
        check_binding("headers", Binding("q", "", {"x-match": "some"}))
    check_binding("headers", Binding("q", "", {"x-match": "any-with-x"}))
    check_binding("headers", Binding("q", ""))
    check_binding("topic", Binding("q", "", {"x-match": "some"}))


# --- the stored forms

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
amqp_values = json_like | st.binary() | st.decimals(allow_nan=False, allow_infinity=False) | st.datetimes()
tables = st.dictionaries(st.text() | st.sampled_from(["!bytes", "!table", "x-match"]), amqp_values, max_size=4)


@given(st.text() | st.sampled_from(ODD_NAMES), st.text() | st.sampled_from(ODD_NAMES), tables)
def test_binding_comes_back_from_its_text(queue, routing_key, arguments):
    binding = Binding(queue, routing_key, arguments)
    text = encode_binding(binding)
    assert text.isascii()
    assert "\n" not in text
    back = decode_binding(text.encode())
    assert (back.queue, back.routing_key, back.arguments) == (queue, routing_key, arguments)
    assert back == binding
    assert hash(back) == hash(binding)


def test_binding_text_is_compact_and_canonical():
    assert encode_binding(Binding("q", "k")) == '["q","k"]'
    assert encode_binding(Binding("q", "k", None)) == '["q","k"]'  # as kombu passes it
    one, other = Binding("q", "k", {"b": 1, "a": (1,)}), Binding("q", "k", {"a": [1], "b": 1})
    assert encode_binding(one) == encode_binding(other) == '["q","k",{"a":[1],"b":1}]'
    assert one == other
    assert Binding("q", "k", {"a": 1}) != Binding("q", "k", {"a": True})
    assert Binding("q", "k") != ("q", "k")


def test_user_table_that_looks_like_a_marked_value_survives():
    for value in ({"!bytes": "eA=="}, {"!table": {"!time": "now"}}, [{"!decimal": "x"}], b"\xff\x00"):
        back = decode_binding(encode_binding(Binding("q", "", {"a": value})))
        assert back.arguments == {"a": value}


def test_binding_keeps_bytes_time_and_decimal():
    arguments = {"b": b"\xff", "t": datetime(2030, 1, 1, tzinfo=UTC), "d": Decimal("1.50")}
    assert decode_binding(encode_binding(Binding("q", "", arguments))).arguments == arguments


@pytest.mark.parametrize("value", [object(), {1: 2}, {"s": {1, 2}}, float("nan"), float("inf"), Decimal("NaN")])
def test_argument_that_no_table_holds_is_refused_by_name(value):
    with pytest.raises(InvalidArgument, match=r"'bad'.*'q'"):
        Binding("q", "", {"bad": value})


def test_argument_name_must_be_text():
    with pytest.raises(InvalidArgument, match=r"argument 1 "):
        Binding("q", "", {1: 2})


@pytest.mark.parametrize(
    "text",
    [b"\xff", "", "{}", '"ab"',
     "[]", '["q"]', "[1,2]", '["q","k",[]]', '["q","k",{},"later"]', '["q","k",null]',
     '["q","k",{"a":{"!time":"never"}}]', '["q","k",{"a":{"!decimal":"x"}}]', '["q","k",{"a":{"!bytes":1}}]'],
)  # fmt: skip
def test_text_that_is_no_binding_is_refused(text):
    with pytest.raises(InvalidArgument, match=r"stored"):
        decode_binding(text)
