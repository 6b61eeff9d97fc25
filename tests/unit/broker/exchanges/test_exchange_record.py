"""The stored form of exchanges, and when two declarations agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord, decode_exchange, encode_exchange
from celery_redis_plus.errors import InvalidArgument

tables = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.binary(), max_size=4)


@given(st.sampled_from(["direct", "topic"]), st.booleans(), st.booleans(), tables)
def test_exchange_comes_back_from_its_text(exchange_type, durable, auto_delete, arguments):
    record = ExchangeRecord(exchange_type, durable, auto_delete, arguments)
    back = decode_exchange(encode_exchange(record))
    assert back.difference(record, "") is None
    assert (back.type, back.durable, back.auto_delete) == (exchange_type, durable, auto_delete)


def test_exchange_text_leaves_out_what_is_false():
    assert encode_exchange(ExchangeRecord()) == '{"type":"direct"}'
    assert decode_exchange('{"type":"topic","durable":true,"later":1}').durable is True


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"type":1}', '{"type":"direct","arguments":[1]}'])
def test_text_that_is_no_exchange_is_refused(text):
    with pytest.raises(InvalidArgument, match=r"stored"):
        decode_exchange(text)


def test_exchange_argument_that_no_table_holds_is_refused_by_name():
    with pytest.raises(InvalidArgument, match=r"'bad'.*'logs'"):
        encode_exchange(ExchangeRecord(arguments={"bad": object()}), "logs")


def test_exchanges_are_equivalent_as_kombu_sees_it():
    assert ExchangeRecord("direct", None, None, None).difference(ExchangeRecord("direct", False, False, {}), "") is None
    assert ExchangeRecord(arguments={"a": [1]}).difference(ExchangeRecord(arguments={"a": [1]}), "") is None
    assert ExchangeRecord(arguments={"a": None}).difference(ExchangeRecord(), "") is None
    assert ExchangeRecord(durable=True).difference(ExchangeRecord(), "")


@pytest.mark.parametrize(
    ("received", "text"),
    [
        (ExchangeRecord("topic"), "'type' for exchange 'e': received 'topic' but current is 'direct'"),
        (ExchangeRecord(durable=True), "'durable' for exchange 'e': received true but current is false"),
        (
            ExchangeRecord(auto_delete=True),
            "'auto_delete' for exchange 'e': received true but current is false",
        ),
        (
            ExchangeRecord(arguments={"alternate-exchange": "ae"}),
            "'alternate-exchange' for exchange 'e': received 'ae' but current is none",
        ),
    ],
)
def test_inequivalent_exchange_names_the_first_difference(received, text):
    assert received.difference(ExchangeRecord(), "e") == f"inequivalent arg {text}"
