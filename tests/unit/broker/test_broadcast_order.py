"""Which of several streams a broadcast is taken from: the order of each publisher holds, however many have one millisecond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_redis_plus.broker.fanout.reader import _earliest
from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursor
from celery_redis_plus.broker.fanout.subscription import Subscription
from celery_redis_plus.keys import Keys


def subscriptions(publications, streams):
    """Return subscribers of that many streams, with entries of (publisher, stream, ms) in the order of their publishes."""
    found = []
    for stream in range(streams):
        cursor = SubscriberCursor("q", Keys().fanout(f"e{stream}", ""), durable=False)
        found.append(Subscription(cursor, None, None))
    sent, entries = {}, [[] for _ in range(streams)]
    for publisher, stream, ms in publications:
        sent[publisher] = sent.get(publisher, 0) + 1
        number = len(entries[stream]) + 1
        # As the server does: an id never falls, although its clock may.
        last = max([ms, *(int(entry[0].partition(b"-")[0]) for entry in entries[stream][-1:])])
        head = b"%d p%d.%d " % (number, publisher, sent[publisher])
        entries[stream].append([b"%d-%d" % (last, number), [b"head", head, b"payload", b""]])
    for subscription, some in zip(found, entries, strict=True):
        if some:
            subscription.fill(some, filtered=False)
    return found


@given(
    streams=st.integers(2, 6),
    publications=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 2)), max_size=40),
)
def test_each_publishers_order_holds_over_any_number_of_streams(streams, publications):
    readers = subscriptions([(publisher, stream % streams, ms) for publisher, stream, ms in publications], streams)
    taken = {}
    while candidates := [reader for reader in readers if reader.buffer]:
        _, entry, _, _ = _earliest(candidates).take()
        publisher, _, number = entry[1][1].split(b" ")[1].partition(b".")
        taken.setdefault(publisher, []).append(int(number))
    assert sum(map(len, taken.values())) == len(publications)
    assert all(numbers == sorted(numbers) for numbers in taken.values()), taken
