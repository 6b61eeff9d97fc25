"""Real consumer processes: fair shares, takeovers of frozen and killed ones. Long forms: `tests/chaos/test_consumers.py`."""

from __future__ import annotations

import signal

import pytest

from tests.support.apps import JOURNAL_DB
from tests.support.consuming import consumers
from tests.support.inbox import declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until


@pytest.fixture
def crew(broker_url, server, tmp_path):
    with server.client(JOURNAL_DB) as journal, consumers(broker_url, journal, tmp_path) as crew:
        yield crew


def test_equal_consumers_share_a_steady_stream(connect, crew):
    for number in range(8):
        crew.start(f"c{number}", prefetch=1)
    crew.wait()
    channel = connect().channel()
    for number in range(800):
        publish(channel, "q", number)
        wait_until(lambda number=number: crew.count() > number - 4, interval_s=0.001)
    shares = crew.shares()
    assert len(shares) == 8
    # A busy machine holds up one or the other; the long form holds them to 10 %.
    assert all(40 <= share <= 200 for share in shares.values()), shares


def test_a_burst_is_shared_though_two_could_take_it_all(connect, crew):
    for number in range(8):
        crew.start(f"c{number}", prefetch=16, work_s=0.3)
    crew.wait()
    publish(connect().channel(), "q", *range(32))
    wait_until(lambda: crew.count() == 32)
    shares = crew.shares()
    assert len(shares) >= 6, shares
    assert max(shares.values()) <= 8, shares


def test_a_frozen_consumer_of_a_higher_priority_is_replaced_within_the_heartbeat_timeout_and_gets_all_again(connect, crew):
    options = {"consumer_heartbeat_timeout": 2, "visibility_timeout": 6}
    crew.start("high", priority=10, prefetch=10, **options)
    crew.start("low", prefetch=10, **options)
    crew.wait()
    channel = connect().channel()
    publish(channel, "q", *range(10))
    wait_until(lambda: crew.count() == 10)
    crew.signal("high", signal.SIGSTOP)
    start = machine_time()
    publish(channel, "q", "frozen")
    wait_until(lambda: crew.shares()["low"] == 1)
    # What the last heartbeat has promised, the timeout, and a look at the list.
    assert machine_time() - start < 10
    crew.signal("high", signal.SIGCONT)

    def high_gets_it():
        before = crew.shares()
        publish(channel, "q", "back")
        wait_until(lambda: crew.count() > before.total())
        return crew.shares()["high"] > before["high"]

    wait_until(high_gets_it)
    low = crew.shares()["low"]
    publish(channel, "q", *range(10))
    wait_until(lambda: crew.shares()["high"] >= 21)
    assert crew.shares()["low"] == low


def test_a_killed_single_active_consumer_is_replaced_in_order(connect, crew):
    single = {"x-single-active-consumer": True}
    channel = connect().channel()
    declare(channel, "q", arguments=single)
    for number in range(3):
        crew.start(f"c{number}", arguments=single, prefetch=5, work_s=0.002, connection_lost_grace=1, visibility_timeout=300)
    crew.wait()
    for kills in range(2):
        # In parts: a consumer that has done all before its death came would leave nothing to the next one.
        publish(channel, "q", *range(200 * kills, 200 * (kills + 1)))
        wait_until(
            lambda kills=kills: crew.count() >= 150 * (kills + 1) and crew.notes()[-1][0] in crew.processes,
            message=lambda: f"{sorted(crew.processes)} live; {crew.count()} done, the last: {crew.notes()[-5:]}",
        )
        crew.kill(crew.notes()[-1][0])
    publish(channel, "q", *range(400, 600))
    wait_until(lambda: len({body for _, body, _ in crew.notes()}) == 600, timeout_s=30)
    assert_in_order(crew.notes(), 600)


def assert_in_order(notes, count):
    first_time = [int(body) for _, body, redelivered in notes if not redelivered]
    assert first_time == sorted(first_time), "a newer message overtook an older one"
    assert sorted({int(body) for _, body, _ in notes}) == list(range(count))
    # Also with the redelivered ones: a takeover goes back to what was not settled, and on from there.
    highest = -1
    for _, body, redelivered in notes:
        assert int(body) == highest + 1 or redelivered, f"{body} after {highest}"
        highest = max(highest, int(body))
