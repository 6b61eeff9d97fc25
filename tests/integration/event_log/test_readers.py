"""What readers have committed decides what is trimmed."""

from __future__ import annotations

import pytest

from celery_redis_plus.errors import InvalidArgument, ReaderTaken
from celery_redis_plus.event_log import readers
from tests.support.event_streams import START_MS, add_events, lives

LIVES = lives(3000)


@pytest.fixture
def count(redis_client):
    return add_events(redis_client, "celery", LIVES)


def present(log, redis_client):
    """Return the number of the first event that is still there."""
    return int(redis_client.xrange(log.keys.queue("celery").events, count=1)[0][0].split(b"-")[1])


def test_nothing_is_trimmed_that_the_slower_reader_has_not_committed(log, redis_client, count):
    readers.commit(log, "slow", {"celery": (START_MS, 1000)})
    readers.commit(log, "fast", {"celery": (START_MS, count)})

    assert 900 < present(log, redis_client) <= 1001


def test_one_reader_alone_trims_what_it_has_and_nothing_more(log, redis_client, count):
    trimmed = readers.commit(log, "only", {"celery": (START_MS, 5000)})

    assert present(log, redis_client) == trimmed + 1 <= 5001
    assert log.numberings(["celery"])["celery"].total == count


def test_registering_without_trimming_keeps_everything(log, redis_client, count):
    assert readers.commit(log, "only", {"celery": (START_MS, 5000)}, trim=False) == 0
    assert present(log, redis_client) == 1


def test_readers_are_listed_with_what_they_still_have_to_read(log, count):
    readers.commit(log, "a", {"celery": (START_MS, 100)}, trim=False)
    readers.commit(log, "a", {"celery": (START_MS, 400)}, trim=False, lost={"celery": 7})
    readers.commit(log, "a", {"celery": (START_MS, 500)}, trim=False, lost={"celery": 3})

    (reader,) = readers.readers(log, ["celery"])

    assert (reader.name, reader.position, reader.behind, reader.lost) == ("a", (START_MS, 500), count - 500, 10)
    assert 0 <= reader.idle_s < 60


def test_a_stale_reader_is_told_and_can_be_dropped_so_that_trimming_goes_on(log, redis_client, count):
    readers.commit(log, "gone", {"celery": (START_MS, 100)})
    redis_client.hset(log.keys.queue("celery").events_readers, "gone", f"{START_MS}-100 1000 0")
    readers.commit(log, "alive", {"celery": (START_MS, count)})
    assert present(log, redis_client) <= 101
    assert [reader.name for reader in readers.readers(log, ["celery"]) if reader.stale()] == ["gone"]

    assert readers.drop(log, "gone", ["celery"]) == 1
    readers.commit(log, "alive", {"celery": (START_MS, count)})

    assert redis_client.xlen(log.keys.queue("celery").events) == 0


def test_a_position_never_goes_back(log, count):
    readers.commit(log, "a", {"celery": (START_MS, 500)}, trim=False)
    readers.commit(log, "a", {"celery": (START_MS, 100)}, trim=False, lost={"celery": 2})

    (reader,) = readers.readers(log, ["celery"])

    assert (reader.position, reader.lost) == ((START_MS, 500), 2)


def test_a_reader_of_one_folder_is_refused_to_another_until_it_is_dropped(log, count):
    readers.commit(log, "a", {"celery": (START_MS, 500)}, trim=False, owner="mine")
    readers.commit(log, "a", {"celery": (START_MS, 600)}, trim=False)

    with pytest.raises(ReaderTaken, match=r"'a' is registered by another folder.*events drop-reader a"):
        readers.commit(log, "a", {"celery": (START_MS, count)}, owner="yours")

    assert readers.readers(log, ["celery"])[0].position == (START_MS, 600)
    readers.drop(log, "a", ["celery"])
    readers.commit(log, "a", {"celery": (START_MS, 700)}, trim=False, owner="yours")
    assert readers.readers(log, ["celery"])[0].position == (START_MS, 700)


def test_nothing_is_noted_for_a_queue_whose_events_were_removed(log, redis_client, count):
    keys = log.keys.queue("celery")
    redis_client.delete(keys.events)

    readers.commit(log, "a", {"celery": (START_MS, 500)})

    assert not redis_client.exists(keys.events_readers)


def test_dropping_an_unknown_reader_names_the_known_ones(log, count):
    readers.commit(log, "a", {"celery": (START_MS, 1)})

    with pytest.raises(InvalidArgument, match=r"'b'.*registered: a"):
        readers.drop(log, "b", ["celery"])


@pytest.mark.parametrize("record", [b"x", b"", b"1-2", b"1-2 x 3 ", b"\xff 1 2"])
def test_a_record_that_somebody_else_wrote_is_written_anew_by_its_reader_and_trims_nothing(log, redis_client, record):
    count = add_events(redis_client, "celery", LIVES)
    key = log.keys.queue("celery").events_readers
    redis_client.hset(key, "mine", record)
    readers.commit(log, "other", {"celery": (START_MS, count)})
    assert [known.name for known in readers.readers(log, ["celery"])] == ["other"]
    if record[:1] != b"1":
        assert redis_client.xlen(log.keys.queue("celery").events) == count, "it does not say what its reader has"
    readers.commit(log, "mine", {"celery": (START_MS, count)}, owner="me")
    assert {known.name: known.behind for known in readers.readers(log, ["celery"])} == {"mine": 0, "other": 0}
