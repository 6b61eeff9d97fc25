"""When each queue is swept: when something is due there, when the queue's timer wakes the thread, and after an outage."""

from __future__ import annotations

import logging
from dataclasses import astuple, fields, replace

import pytest

from celery_redis_plus.broker.consumers.registry import SeenQueue
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.consumed_queues import SEEN_S, ConsumedQueues
from celery_redis_plus.maintenance.empty_queues import EMPTY_SWEEP_S, ENOUGH_CONSUMERS
from celery_redis_plus.maintenance.maintenance_task import SLICE_S
from celery_redis_plus.maintenance.sweeper import (
    EMPTY,
    NOT_REACHED,
    QUEUES_A_SWEEP,
    TOGETHER_S,
    Sweeper,
    SweepLimits,
    Swept,
)

LIMITS = SweepLimits(visibility_timeout_s=300, delivery_limit=None, dead_letter_max=10, dead_letter_ttl_s=60)
WAIT_S = 4.0
#: Seconds between two looks at the list of a queue's consumers.
LOOKED_FOR_S = 20.0
NOTHING = dict.fromkeys((field.name for field in fields(Swept)), 0) | {"wait_ms": WAIT_S * 1000, "failure": b"", "id": b""}


ALL = [f"q{number:03}" for number in range(3 * QUEUES_A_SWEEP)]


class Commands:
    """In place of a `CommandConnection`: it notes the sweeps, and replies with what a test set."""

    def __init__(self, keys, clock):
        #: The sweeps: (queues, whether it takes them over from another process).
        self.sweeps = []
        #: Queue -> what its sweep did, by the names of `Swept`.
        self.replies = {}
        #: The plain looks at queues that were empty.
        self.looks = []
        #: Queues with messages, as a look finds them.
        self.filled = set()
        #: Queue -> the id of its record, as a look finds it.
        self.ids = {}
        #: Seconds that one takes.
        self.takes_s = 0.0
        self._by_meta = {keys.queue(queue).meta: queue for queue in ALL}
        self._by_ready = {keys.queue(queue).ready: queue for queue in ALL}
        self._clock = clock

    def call(self, _script, keys, _name, _lease, _interval, _limit, take_over, *_others):
        queues = [self._by_meta[key] for key in keys if key in self._by_meta]
        self.sweeps.append((sorted(queues), bool(take_over)))
        self._clock.advance(self.takes_s)
        return [column for queue in queues for column in astuple(Swept(**NOTHING | self.replies.get(queue, {})))]

    def pipeline(self, commands):
        (_, *places), *ids = commands
        self.looks.append([self._by_ready[key] for key in places if key in self._by_ready])
        return [len(self.filled.intersection(self.looks[-1])), *(self.ids.get(self._by_meta[key], b"") for _, key, _ in ids)]


@pytest.fixture
def commands(clock):
    return Commands(Keys(), clock)


@pytest.fixture
def forwarded():
    return []


@pytest.fixture
def ids():
    return []


@pytest.fixture
def consumed():
    return ConsumedQueues()


@pytest.fixture
def sweeper(commands, forwarded, ids, consumed):
    return Sweeper(
        commands,
        Keys(),
        consumed,
        name="s",
        limits=LIMITS,
        forward=forwarded.append,
        note_id=lambda *found: ids.append(found),
    )


def test_without_queues_nothing_is_due(sweeper, commands):
    assert sweeper.next_run_at == float("inf")
    sweeper.run()
    assert commands.sweeps == []


def test_a_new_queue_is_swept_at_once(sweeper, commands, clock):
    sweeper.watch(["q000"])
    assert sweeper.next_run_at <= clock()
    sweeper.run()
    assert commands.sweeps == [(["q000"], False)]


def test_a_queue_is_swept_again_when_the_server_said(sweeper, commands, clock):
    commands.replies["q000"] = {"wait_ms": 2500}
    sweeper.watch(["q000", "q001"])
    sweeper.run()
    assert sweeper.next_run_at == clock() + 2.5
    clock.advance(2.5)
    sweeper.run()
    assert commands.sweeps[1:] == [(["q000"], False)]


def test_the_wait_begins_with_the_servers_reply(sweeper, commands, clock):
    commands.takes_s = 0.5
    sweeper.watch(["q000"])
    sweeper.run()
    assert sweeper.next_run_at == clock() + WAIT_S


def test_queues_that_are_due_together_are_swept_together(sweeper, commands, clock):
    commands.replies = {"q000": {"wait_ms": 1000}, "q001": {"wait_ms": 1000 + TOGETHER_S * 1000}, "q002": {"wait_ms": 1001}}
    sweeper.watch(["q000", "q001", "q002"])
    sweeper.run()
    clock.advance(1)
    sweeper.run()
    assert commands.sweeps[1:] == [(["q000", "q001"], False)]


def test_a_known_queue_keeps_its_time(sweeper, clock):
    sweeper.watch(["q000"])
    sweeper.run()
    sweeper.watch(["q000"])
    assert sweeper.next_run_at == clock() + WAIT_S


def test_a_queue_that_is_not_watched_any_more_is_not_swept(sweeper, commands, clock):
    sweeper.watch(["q000", "q001"])
    sweeper.run()
    sweeper.watch(["q001"])
    clock.advance(WAIT_S)
    sweeper.run()
    assert commands.sweeps[1:] == [(["q001"], False)]


def test_a_queue_with_a_schedule_wakeup_is_swept_at_once_and_taken_over(sweeper, commands, clock):
    sweeper.watch(["q000", "q001"])
    sweeper.run()
    sweeper.run_soon("q001")
    assert sweeper.next_run_at <= clock()
    sweeper.run()
    assert commands.sweeps[1:] == [(["q001"], True)]


def test_a_queue_is_taken_over_once(sweeper, commands, clock):
    sweeper.watch(["q000"])
    sweeper.run_soon("q000")
    sweeper.run()
    clock.advance(WAIT_S)
    sweeper.run()
    assert [take_over for _, take_over in commands.sweeps] == [True, False]


def test_a_schedule_wakeup_of_a_queue_that_is_not_swept_does_nothing(sweeper, commands):
    sweeper.run_soon("q000")
    assert sweeper.next_run_at == float("inf")


def test_after_an_outage_all_queues_are_swept_at_once(sweeper, commands):
    sweeper.watch(["q000", "q001"])
    sweeper.run()
    sweeper.run_soon()
    sweeper.run()
    assert commands.sweeps[1:] == [(["q000", "q001"], False)]


def test_many_queues_are_swept_in_several_calls(sweeper, commands):
    sweeper.watch(ALL[: QUEUES_A_SWEEP + 1])
    sweeper.run()
    assert [len(queues) for queues, _ in commands.sweeps] == [QUEUES_A_SWEEP, 1]


def test_after_a_slice_the_rest_stays_due(sweeper, commands, clock):
    commands.takes_s = SLICE_S
    sweeper.watch(ALL)
    sweeper.run()
    assert len(commands.sweeps) == 1
    assert sweeper.next_run_at <= clock()
    sweeper.run()
    sweeper.run()
    assert sweeper.next_run_at > clock()
    assert sorted(queue for queues, _ in commands.sweeps for queue in queues) == ALL


def test_a_queue_that_a_call_did_not_come_to_is_the_first_of_the_next(sweeper, commands, monkeypatch):
    orders, call = [], commands.call

    def noted(script, keys, *arguments):
        orders.append([queue for key in keys for queue in ("q000", "q001") if key == Keys().queue(queue).meta])
        return call(script, keys, *arguments)

    monkeypatch.setattr(commands, "call", noted)
    commands.replies = {"q000": {"state": 1, "wait_ms": 0}, "q001": {"state": NOT_REACHED}}
    sweeper.watch(["q000"])
    sweeper.watch(["q000", "q001"])
    sweeper.run()
    sweeper.run()
    assert orders == [["q000", "q001"], ["q001", "q000"]]


def test_queues_whose_timers_rang_come_first(sweeper, commands):
    commands.takes_s = SLICE_S
    sweeper.watch(ALL[: QUEUES_A_SWEEP + 1])
    sweeper.run_soon(ALL[QUEUES_A_SWEEP])
    sweeper.run()
    assert commands.sweeps == [([ALL[QUEUES_A_SWEEP]], True)]


def test_a_queue_with_dying_messages_is_forwarded(sweeper, commands, forwarded):
    commands.replies["q001"] = {"dying": 3}
    sweeper.watch(["q000", "q001"])
    sweeper.run()
    assert forwarded == ["q001"]


def test_the_id_of_a_queues_record_or_that_it_has_none_is_passed_on(sweeper, commands, ids):
    commands.replies["q001"] = {"id": b"1-1"}
    sweeper.watch(["q000", "q001"])
    sweeper.run()
    assert sorted(ids) == [("q000", b""), ("q001", b"1-1")]


def test_a_queue_that_cannot_be_swept_is_logged_once_and_tried_again(sweeper, commands, clock, caplog):
    sweeper.watch(["q000"])
    with caplog.at_level(logging.INFO, "celery_redis_plus.maintenance"):
        # Messages that fail are tried again after the interval: a pass in between goes well.
        for failure in (b"WRONGTYPE", b"WRONGTYPE", b"", b"WRONGTYPE", b"", b"", b""):
            commands.replies["q000"] = {"failure": failure}
            sweeper.run()
            clock.advance(WAIT_S)
    refused, again = [record.getMessage() for record in caplog.records]
    assert refused.startswith("queue 'q000' cannot be swept (WRONGTYPE: script sweep, one of the keys queue:{q000}, ")
    assert refused.endswith("events_readers:{q000}); trying again every 4 s")
    assert again == "queue 'q000' is swept again"


@pytest.fixture
def resting(commands, sweeper):
    """A queue that was found empty."""
    commands.replies["q000"] = {"state": EMPTY}
    sweeper.watch(["q000"])
    sweeper.run()
    commands.sweeps.clear()
    return "q000"


def run_for(sweeper, clock, seconds):
    """Run the sweeper whenever it is due."""
    until = clock() + seconds
    while sweeper.next_run_at <= until:
        clock.advance(max(0.0, sweeper.next_run_at - clock()))
        sweeper.run()


def test_an_empty_queue_is_looked_at_by_a_plain_command(resting, sweeper, commands, clock):
    run_for(sweeper, clock, EMPTY_SWEEP_S - 1)
    assert (len(commands.looks), commands.sweeps) == ((EMPTY_SWEEP_S - 1) // WAIT_S, [])


def test_an_empty_queue_is_swept_now_and_then(resting, sweeper, commands, clock):
    run_for(sweeper, clock, 3 * EMPTY_SWEEP_S)
    assert commands.sweeps == [([resting], False)] * 3


def test_a_queue_that_is_not_empty_any_more_is_swept(resting, sweeper, commands, clock):
    commands.filled.add(resting)
    run_for(sweeper, clock, WAIT_S)
    assert commands.sweeps == [([resting], False)]


def test_an_empty_queue_that_was_declared_again_is_swept(resting, sweeper, commands, clock):
    commands.ids[resting] = b"another"
    run_for(sweeper, clock, WAIT_S)
    assert commands.sweeps == [([resting], False)]


def test_a_schedule_wakeup_of_an_empty_queue_is_heeded(resting, sweeper, commands):
    sweeper.run_soon(resting)
    sweeper.run()
    assert (commands.looks, commands.sweeps) == ([], [([resting], True)])


def test_an_empty_queue_is_swept_at_once_after_an_outage(resting, sweeper, commands):
    sweeper.run_soon()
    sweeper.run()
    assert (commands.looks, commands.sweeps) == ([], [([resting], False)])


@pytest.fixture
def see(clock, consumed):
    """Note what a look at the list of consumers has told: `see(2)`."""

    def note(consumers, record_id=b"", *, empty=True, unpublished=False):
        consumed.seen["q000"] = SeenQueue(clock(), consumers, record_id, empty, unpublished)

    return note


def run_seen(sweeper, clock, see, seconds, consumers=1, **seen):
    """Run the sweeper while the queue's consumers are looked for; nothing was ever published to it where that is not said."""
    for _ in range(int(seconds / LOOKED_FOR_S)):
        see(consumers, **{"unpublished": True, **seen})
        until = clock() + LOOKED_FOR_S
        run_for(sweeper, clock, LOOKED_FOR_S)
        clock.advance(until - clock())


def test_an_only_consumer_neither_sweeps_nor_looks_at_a_queue_that_it_knows_to_be_unused(resting, sweeper, commands, clock, see):
    run_seen(sweeper, clock, see, 10 * EMPTY_SWEEP_S)
    assert (commands.looks, commands.sweeps) == ([], [])


def test_a_queue_to_which_something_was_published_is_looked_at_again(resting, sweeper, commands, clock, see):
    run_seen(sweeper, clock, see, 2 * EMPTY_SWEEP_S)
    see(1)
    run_for(sweeper, clock, EMPTY_SWEEP_S)
    assert commands.looks or commands.sweeps


def test_a_queue_whose_consumers_are_looked_for_no_more_is_looked_at_again(resting, sweeper, commands, clock, see):
    run_seen(sweeper, clock, see, 2 * EMPTY_SWEEP_S)
    run_for(sweeper, clock, SEEN_S + EMPTY_SWEEP_S)
    assert commands.looks or commands.sweeps


def test_an_unused_queue_that_was_declared_again_is_swept(resting, sweeper, commands, clock, see):
    commands.ids[resting] = b"another"
    run_seen(sweeper, clock, see, EMPTY_SWEEP_S, record_id=b"another")
    assert commands.sweeps


def test_an_unused_queue_with_a_second_consumer_is_looked_at(resting, sweeper, commands, clock, see):
    run_seen(sweeper, clock, see, EMPTY_SWEEP_S)
    see(2, unpublished=True)
    run_for(sweeper, clock, EMPTY_SWEEP_S + WAIT_S)
    assert commands.looks or commands.sweeps


def test_an_only_consumer_looks_between_two_sweeps_once(resting, sweeper, commands, clock, see):
    see(1)
    run_for(sweeper, clock, WAIT_S)
    commands.looks.clear()
    run_for(sweeper, clock, 10 * EMPTY_SWEEP_S)
    assert len(commands.sweeps) == 10
    assert 9 <= len(commands.looks) <= 11


def test_many_consumers_look_together_as_often_as_enough_of_them(resting, sweeper, commands, clock, see):
    see(2 * ENOUGH_CONSUMERS)
    run_for(sweeper, clock, 200 * EMPTY_SWEEP_S)
    asked = len(commands.looks) + len(commands.sweeps)
    assert 0.4 < asked * WAIT_S / (200 * EMPTY_SWEEP_S) < 0.8


def test_very_many_consumers_look_now_and_then_and_sweep_in_turn(resting, sweeper, commands, clock, see):
    see(25 * ENOUGH_CONSUMERS, empty=False)
    run_for(sweeper, clock, 1_000 * EMPTY_SWEEP_S)
    assert 25 < len(commands.sweeps) < 60
    assert 0.8 < len(commands.looks) / 1_000 < 1.3


def test_very_many_consumers_go_by_the_looks_at_their_list_while_the_queue_is_empty(resting, sweeper, commands, clock, see):
    run_seen(sweeper, clock, see, 1_000 * EMPTY_SWEEP_S, 25 * ENOUGH_CONSUMERS, unpublished=False)
    assert commands.looks == []
    assert 25 < len(commands.sweeps) < 60


def test_a_short_visibility_timeout_leaves_no_rest(commands, clock):
    limits = replace(LIMITS, visibility_timeout_s=3)
    consumed = ConsumedQueues()
    consumed.seen["q000"] = SeenQueue(clock(), 1, b"", empty=True, unpublished=False)
    sweeper = Sweeper(commands, Keys(), consumed, name="s", limits=limits, forward=lambda _: None)
    commands.replies["q000"] = {"state": EMPTY}
    sweeper.watch(["q000"])
    sweeper.run()
    assert sweeper.next_run_at - clock() <= 0.5
