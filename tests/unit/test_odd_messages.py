"""Odd messages in the readers that need no server: the migration, log lines, descriptions of events; and what counts as odd."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from kombu.utils.json import register_type

from celery_redis_plus import events
from celery_redis_plus.broker.consumers.failures import name_of
from celery_redis_plus.broker.consumers.last_error import failure_by
from celery_redis_plus.event_log.batches import batch
from celery_redis_plus.event_log.metadata import describe
from celery_redis_plus.migration.conversion import PriorityMapping, UnreadableError, from_kombu, to_kombu
from celery_redis_plus.migration.importer import message_in
from celery_redis_plus.migration.kombu_broker import KombuUnacked
from celery_redis_plus.migration.status import _eta_ms
from celery_redis_plus.stored_message import (
    Claimed,
    UnreadableMessageError,
    shown_envelope,
    split_payload,
    stored_number,
    unreadable,
)
from celery_redis_plus.transport.kombu_message import payload_of
from tests.support.odd_messages import UnspeakableError, payloads
from tests.unit.migration.test_kombu_broker import broker

ENVELOPES = [split_payload(payload)[0] for payload in payloads()]
SAME_ORDER = PriorityMapping(low_first=True, choice="keep")


def converted(convert, *arguments):
    """Return whether a message was converted; False where it is named as unreadable. Anything else is raised."""
    try:
        return bool(convert(*arguments))
    except UnreadableError:
        return False


def as_kombu_has_it(line):
    with suppress(ValueError, TypeError, RecursionError):
        return json.dumps({**json.loads(line), "body": "x"}).encode()
    return line


def test_a_message_of_kombus_is_converted_or_named_as_unreadable():
    found = [converted(from_kombu, as_kombu_has_it(line), SAME_ORDER, None, 0) for line in ENVELOPES]
    assert 100 < sum(found) < len(found)


@pytest.mark.parametrize("due_ms", [None, 1_700_000_000_000])
def test_a_message_of_ours_is_converted_or_named_as_unreadable(due_ms):
    found = [converted(to_kombu, line, b"x", "tag", due_ms, SAME_ORDER, 0) for line in ENVELOPES]
    assert 100 < sum(found) < len(found)


def test_unacked_messages_of_kombus_are_looked_at():
    for text in ENVELOPES:
        for unacked in (text, b"[%b,5,5]" % text, b"[%b]" % text):
            assert isinstance(message_in(unacked), bytes)
            _eta_ms(unacked)
            assert isinstance(broker().queues_of_unacked(KombuUnacked(b"tag", 1.0, unacked)), list)


def test_a_log_line_names_a_message():
    assert all(name_of("tag", text).endswith("message tag") or "(message tag)" in name_of("tag", text) for text in ENVELOPES)


def test_the_description_of_an_odd_message_can_be_read():
    values = []
    for text in ENVELOPES:
        envelope = shown_envelope(text)
        description = describe(envelope["headers"], envelope["properties"], body_size=1)
        values.append(f"published\t1\t1a209e9e9fd00000001.1\t\t\t\t\t\t\t{description}".encode("utf-8", "surrogateescape"))
        events.decode(values[-1])
    entries = [(b"1-%d" % number, [events.FIELD, value]) for number, value in enumerate(values, start=1)]
    assert batch("q", entries).num_rows == len(ENVELOPES)


@pytest.mark.parametrize("value", [b"x", b"1e3", b"True", b"9" * 30, b"\\q"])
def test_a_value_of_an_event_that_is_no_number_is_empty(value):
    columns = [b"published", b"5", b"1a209e9e9fd00000001.1", *[value] * (len(events.VALUE) - 3)]
    wrong = b"\t".join(columns)
    event = events.decode(wrong)
    assert (event.claim, event.delay, event.eta, event.body_size) == (None,) * 4
    right = events.encode(events.Event(event="acked", ts=6, id="1a209e9e9fd00000002.1", claim=7))
    rows = batch("q", [(b"1-1", [events.FIELD, wrong]), (b"1-2", [events.FIELD, right])]).to_pylist()
    assert [row["claim"] for row in rows] == [None, 7]


@pytest.mark.parametrize("value", [b"x", b"", None, b"nan", b"inf", b"[]", "\ud800"])
def test_a_stored_number_that_is_none_is_zero(value):
    assert stored_number(value) == 0


def test_the_text_of_an_error_that_has_none_is_its_class():
    assert failure_by(UnspeakableError()).text == "UnspeakableError: <UnspeakableError whose text raises ZeroDivisionError>"
    assert failure_by(ValueError("\ud800")).packed().encode()


class Interrupted:
    """A registered type whose decoder is interrupted."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, SoftTimeLimitExceeded, GeneratorExit, MemoryError])
def test_interrupts_and_time_limits_tell_nothing_of_the_message(error):
    def decode(_):
        raise error

    register_type(Interrupted, "tests.interrupted", lambda _: {}, decode)
    line = b'{"headers":{"x":{"__type__":"tests.interrupted","__value__":1}},"properties":{"delivery_info":{}}}'
    with pytest.raises(error):
        payload_of(Claimed("tag", "q", 1, 0, redelivered=False, envelope=line, body=b""))


@pytest.mark.parametrize("error", [ValueError, RecursionError, UnspeakableError, TimeoutError])
def test_anything_else_that_reading_raises_makes_the_message_unreadable(error):
    found = unreadable(error())
    assert isinstance(found, UnreadableMessageError)
    assert isinstance(found.error, error)
