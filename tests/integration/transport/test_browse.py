"""`browse`: the messages of a queue, in order and paged, which stay where they are."""

import kombu
import pytest
from kombu.exceptions import ChannelError, ContentDisallowed

from celery_redis_plus import browse
from celery_redis_plus.errors import InvalidArgument
from tests.support.browsing import assert_browsing_changes_nothing, fill_each_state
from tests.support.inbox import Inbox, declare, publish


def bodies(channel, **options):
    return [message.decode() for message in browse("q", connection=channel, **options)]


@pytest.fixture
def mixed(channel):
    """A queue with two messages in each state."""
    fill_each_state(channel)
    return channel


def test_browse_yields_each_state_in_its_order(mixed):
    assert bodies(mixed, state="ready") == ["ready 1", "ready 2", "ready 3"]
    assert bodies(mixed, state="delayed") == ["later 1", "later 2"]
    assert bodies(mixed, state="unacked") == ["held 1", "held 2"]
    assert bodies(mixed, state="dead") == ["died 1", "died 2"]
    assert [one.state for one in browse("q", connection=mixed)] == [
        *["ready"] * 3, *["delayed"] * 2, *["unacked"] * 2, *["dead"] * 2
    ]  # fmt: skip


def test_browse_tells_what_is_known_of_a_message(mixed, redis_client):
    first = next(browse("q", connection=mixed, state="ready"))
    dead = next(browse("q", connection=mixed, state="dead"))
    held = next(browse("q", connection=mixed, state="unacked"))
    assert (first.queue, first.priority, first.routing_key, first.deliveries) == ("q", 9, "q", 0)
    assert (dead.reason, dead.deliveries) == ("rejected", 1)
    assert held.holder == redis_client.hget(f"message:{{q}}:{held.tag}", "owner").decode()


def test_browse_goes_on_where_another_call_has_ended(channel):
    declare(channel, "q")
    publish(channel, "q", *range(250))
    pages = [bodies(channel, state="ready", first=first, limit=60) for first in range(0, 300, 60)]
    assert [len(page) for page in pages] == [60, 60, 60, 60, 10]
    assert [number for page in pages for number in page] == list(range(250))
    assert bodies(channel, limit=120) == list(range(120))


def test_browse_keeps_no_connection_of_an_app_while_its_reader_pauses(channel, broker_url):
    declare(channel, "q")
    publish(channel, "q", *range(150))
    with kombu.Connection(broker_url) as connection, kombu.Connection(broker_url) as other:
        half_read = browse("q", connection=connection)
        assert next(half_read).decode() == 0
        assert len(list(browse("q", connection=other))) == 150
        assert len(list(half_read)) == 149


def test_browse_reads_what_the_reader_accepts(channel):
    declare(channel, "q")
    publish(channel, "q", {"a": 1}, serializer="pickle")
    publish(channel, "q", {"b": 2}, compression="zlib")
    publish(channel, "q", "x" * 1_100_000)
    pickled, compressed, large = browse("q", connection=channel)
    with pytest.raises(ContentDisallowed):
        pickled.decode()
    assert pickled.decode(accept=["pickle"]) == {"a": 1}
    assert compressed.decode() == {"b": 2}
    with pytest.raises(InvalidArgument, match="over 1 MB"):
        large.decode()


def test_bad_arguments_are_named(channel):
    declare(channel, "q")
    with pytest.raises(InvalidArgument, match="'state' of browse is 'redy'; allowed are ready, delayed"):
        browse("q", connection=channel, state="redy")
    with pytest.raises(InvalidArgument, match="'first' of browse is 3; allowed is a number from 0 on, with a state"):
        browse("q", connection=channel, first=3)
    with pytest.raises(InvalidArgument, match="'limit' of browse is -1"):
        browse("q", connection=channel, limit=-1)
    with pytest.raises(ChannelError, match="'nonesuch'") as raised:
        browse("nonesuch", connection=channel)
    assert raised.value.reply_code == 404


def test_browsing_takes_short_calls_and_changes_nothing(mixed, redis_client):
    assert_browsing_changes_nothing(mixed, redis_client, 3_000)


def test_a_consumer_gets_every_message_after_it_was_browsed(channel):
    declare(channel, "q")
    publish(channel, "q", 1, 2, 3)
    assert bodies(channel) == [1, 2, 3]
    inbox = Inbox(channel, "q")
    inbox.drain(3)
    assert [message.headers.get("x-delivery-count") for message in inbox.messages] == [None] * 3
