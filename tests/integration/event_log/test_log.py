"""Which queues have events, what their streams hold, and the entries themselves."""

from __future__ import annotations

import pytest

from celery_redis_plus import events
from celery_redis_plus.errors import EventsLost, NoEvents, ServerUnreachable, UnknownEventSchema, WrongKeyType
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.keys import Keys
from tests.support.event_streams import START_MS, add_events, begin_epoch, lives

LIVES = lives(50)
MANY = lives(500)


def test_queues_are_found_by_name_and_pattern(log, redis_client):
    for queue in ("celery", "mail", "mail,fast"):
        add_events(redis_client, queue, LIVES[:3])

    assert log.queues() == ["celery", "mail", "mail,fast"]
    assert log.queues("mail*") == ["mail", "mail,fast"]
    assert log.queues("celery, mail") == ["celery", "mail"]
    assert log.queues('["mail,fast"]') == ["mail,fast"]


def test_a_queue_without_events_is_an_error_that_names_those_with(log, redis_client):
    add_events(redis_client, "celery", LIVES[:3])

    with pytest.raises(NoEvents, match=r"'cellery'.*celery"):
        log.queues("cellery")


def test_without_any_event_log_the_error_says_to_switch_it_on(log):
    with pytest.raises(NoEvents, match="event_log=True"):
        log.queues()


def test_a_server_that_is_not_there_is_one_clear_line():
    with EventLog("redis://127.0.0.1:1/0") as log, pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1:1.*check"):
        log.queues()


def test_a_key_of_another_type_is_named_and_the_connection_stays_usable(log, redis_client):
    add_events(redis_client, "celery", LIVES[:3])
    redis_client.delete(log.keys.queue("celery").events)
    redis_client.set(log.keys.queue("celery").events, "x")

    with pytest.raises(WrongKeyType):
        log.numberings(["celery"])
    assert log.queues() == ["celery"]


def test_a_stream_is_counted_from_one_without_gaps(log, redis_client):
    count = add_events(redis_client, "celery", LIVES)
    numbering = log.numberings(["celery"])["celery"]

    assert (numbering.total, numbering.trimmed, numbering.first) == (count, 0, (START_MS, 1))


def test_chunks_give_every_entry_once_and_in_order(log, redis_client):
    count = add_events(redis_client, "celery", LIVES)

    chunks = list(log.chunks("celery", START_MS, 1, count, 7))

    assert [len(chunk) for chunk in chunks[:-1]] == [7] * (len(chunks) - 1)
    assert [events.decode(entry[1][1]) for chunk in chunks for entry in chunk] == LIVES


@pytest.mark.parametrize("still_on", [True, False])
def test_large_payloads_come_in_lists_of_32_mb(log, redis_client, still_on):
    """A list of 5,000 of them would have 5 GB, and one of Arrow's columns ends at 2 GB."""
    keys = Keys("").queue("celery")
    plain, large = MANY[:200], [event for event in MANY if event.event == "published"][:70]
    redis_client.hset(keys.events_meta, "payload", int(still_on))
    written = [*(plain if still_on else []), *large, *plain]
    if still_on:
        add_events(redis_client, "celery", plain)
    add_events(redis_client, "celery", large, payload=b"x" * 1_000_000)
    add_events(redis_client, "celery", plain)

    chunks = list(log.chunks("celery", START_MS, 1, len(written), 5000))

    sizes = [sum(len(entry[1]) > 2 for entry in chunk) for chunk in chunks]
    assert sum(sizes) == 70
    assert max(sizes) <= 33
    assert [events.decode(entry[1][1]) for chunk in chunks for entry in chunk] == written


def test_a_log_with_payloads_is_read_in_small_replies(log, redis_client):
    """A few hundred events without a payload tell nothing of the next ones."""
    keys = Keys("").queue("celery")
    add_events(redis_client, "celery", MANY)
    for payload, most in ((False, 8), (True, 40)):
        redis_client.hset(keys.events_meta, "payload", int(payload))
        redis_client.config_resetstat()
        (chunk,) = log.chunks("celery", START_MS, 1, 1000, 5000)
        assert len(chunk) == 1000
        calls = redis_client.info("commandstats")["cmdstat_xrange"]["calls"]
        assert most * 0.6 <= calls <= most


def test_another_epoch_goes_on_counting(log, redis_client):
    count = add_events(redis_client, "celery", LIVES)
    begin_epoch(redis_client, "celery", START_MS + 5, LIVES[0])
    add_events(redis_client, "celery", LIVES[1:3])

    numbering = log.numberings(["celery"])["celery"]

    assert numbering.total == count + 3
    assert numbering.ranges(count - 2, count + 3) == [(START_MS, count - 1, count), (START_MS + 5, 1, 3)]


def test_a_stream_that_was_deleted_and_begun_anew_is_noticed(log, redis_client):
    add_events(redis_client, "celery", LIVES)
    redis_client.delete(log.keys.queue("celery").events)
    add_events(redis_client, "celery", LIVES[:10])

    with pytest.raises(EventsLost, match="deleted and begun anew"):
        log.numberings(["celery"])
    assert log.numberings(["celery"], strict=False)["celery"].total == 9


def test_events_of_a_later_release_are_refused(log, redis_client):
    add_events(redis_client, "celery", LIVES[:3])
    redis_client.hset(log.keys.queue("celery").events_meta, "version", 99)

    with pytest.raises(UnknownEventSchema, match=r"99.*Upgrade"):
        log.numberings(["celery"])


@pytest.mark.parametrize("place", [0, 1, 70, 120])
def test_a_time_is_found_by_bisection(log, redis_client, place):
    add_events(redis_client, "celery", LIVES)
    numbering = log.numberings(["celery"])["celery"]
    ms = LIVES[place].ts // 1000

    position = log.first_after(numbering, ms)

    assert all(event.ts // 1000 < ms for event in LIVES[:position])
    assert LIVES[position].ts // 1000 >= ms


def test_times_outside_the_stream_are_its_ends(log, redis_client):
    count = add_events(redis_client, "celery", LIVES)
    numbering = log.numberings(["celery"])["celery"]

    assert log.first_after(numbering, 0) == 0
    assert log.first_after(numbering, START_MS * 2) == count
