"""`debounce` and `unique_conflict="replace"`: of tasks with the same key the latest arguments run, once."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta

import pytest
from celery import chain
from kombu import pools

import celery_redis_plus as crp
from celery_redis_plus.errors import InvalidArgument, OptionError
from celery_redis_plus.integration import unique_tasks
from celery_redis_plus.testing import running_worker
from tests.support.inbox import Inbox
from tests.support.lost_replies import LostReplies
from tests.support.waiting import wait_until


@pytest.fixture
def shop(app):
    """A configured app; `make` makes a task whose key is `user`."""
    crp.configure_app(app)
    app.runs = []

    def make(name="index", *, unique_by=("user",), **options):
        @app.task(name=name, bind=True, shared=False, unique_by=unique_by, **options)
        def task(self, user, amount=0):
            app.runs.append((user, amount, self.request.id, time.time()))
            return amount

        return task

    app.make = make
    return app


@pytest.fixture
def inbox(shop):
    """Take messages in place of a worker: `inbox(1)` returns the arguments of the first one."""
    with shop.connection_for_read() as connection:
        inbox = Inbox(connection.channel(), "celery", ack=False)

        def take(count):
            inbox.drain(count)
            return [(message.headers["id"], *json.loads(message.body)[0]) for message in inbox.messages]

        take.inbox = inbox
        yield take


def flags(result):
    return result.is_duplicate, result.is_replacement


def sizes(shop):
    with shop.connection_for_read() as connection:
        found = connection.channel().queue_sizes("celery")
    return found.ready, found.delayed, found.unacked


def test_the_latest_arguments_run_once_and_all_callers_get_their_result(shop):
    index = shop.make(debounce=0.4)
    results = [index.delay("ada", amount) for amount in range(5)]
    other = index.delay("bob", 9)
    assert [flags(result) for result in results] == [(False, False)] + 4 * [(False, True)]
    assert len({result.id for result in results}) == 1
    with running_worker(shop, concurrency=2, pool="threads"):
        assert [result.get(timeout=30) for result in (results[0], results[-1], other)] == [4, 4, 9]
        assert sorted(run[:2] for run in shop.runs) == [("ada", 4), ("bob", 9)]
        # What is published behind a run is a run of its own.
        again = index.delay("ada", 5)
        assert (flags(again), again.id == results[0].id) == ((False, False), False)
        assert again.get(timeout=30) == 5


def test_one_that_is_published_again_and_again_waits_for_max_wait_at_most(shop, inbox):
    index = shop.make(debounce=60, max_wait=timedelta(minutes=1))
    first = index.delay("ada", 1)
    crp.testing.advance(50, app=shop)
    assert index.delay("ada", 2).id == first.id
    crp.testing.advance(9, app=shop)
    assert index.delay("ada", 3).id == first.id
    assert sizes(shop) == (0, 1, 0)
    crp.testing.advance(1.5, app=shop)
    assert inbox(1) == [(first.id, "ada", 3)]


def test_a_task_without_max_wait_waits_for_ten_times_its_debounce(shop):
    headers = unique_tasks.unique_headers(shop.make(debounce=0.5), ("ada",), {})
    assert headers["x-deduplication-max-wait"] == 5_000
    assert headers["x-deduplication-delay"] == 500


def test_a_task_in_work_goes_on_and_the_next_one_begins_a_new_wait(shop, inbox):
    index = shop.make(debounce=0.2)
    first = index.delay("ada", 1)
    assert inbox(1) == [(first.id, "ada", 1)]
    second, third = index.delay("ada", 2), index.delay("ada", 3)
    assert (flags(second), flags(third)) == ((False, False), (False, True))
    assert inbox(2)[1] == (second.id, "ada", 3)
    assert first.id != second.id == third.id


@pytest.mark.parametrize(("unique", "in_work"), [
    ("while-queued", (False, False)), ("until-start", (False, False)),
    ("until-success", (True, False)), ("window 1h", (True, False)),
])  # fmt: skip
def test_conflict_replace_gives_a_waiting_unique_task_the_latest_arguments(unique, in_work, shop, inbox):
    sync = shop.make("sync", unique=unique, unique_conflict="replace")
    first = sync.apply_async(("ada", 1), countdown=600)
    assert flags(first) == (False, False)
    second = sync.apply_async(("ada", 2), countdown=900)
    assert (flags(second), sizes(shop)) == ((False, True), (0, 1, 0))
    # The time is also that of the latest one.
    third = sync.delay("ada", 3)
    assert first.id == second.id == third.id
    assert inbox(1) == [(first.id, "ada", 3)]
    fourth = sync.delay("ada", 4)
    assert flags(fourth) == in_work
    assert (fourth.id == first.id) is in_work[0]


def test_a_retry_waits_as_it_asks_and_is_not_replaced(shop):
    tries = []

    @shop.task(name="fails", bind=True, shared=False, debounce=0.1, retry_on={ConnectionError: 600})
    def fails(self, user):
        tries.append(self.request.retries)
        raise ConnectionError("down")

    first = fails.delay("ada")
    with running_worker(shop, concurrency=1, pool="threads"):
        wait_until(lambda: sizes(shop) == (0, 1, 0) and tries == [0])
        later = fails.delay("ada")
        assert (flags(later), later.id == first.id, sizes(shop)[1]) == ((False, False), False, 2)


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_answers_change_neither_arguments_nor_flags(lost, shop, inbox, monkeypatch):
    index = shop.make(debounce=0.5)
    replies = LostReplies(monkeypatch)
    replies.lose(lost)
    first = index.delay("ada", 1)
    replies.lose(lost)
    second = index.delay("ada", 2)
    assert replies.lost == 2 * lost
    assert (flags(first), flags(second), first.id) == ((False, False), (False, True), second.id)
    assert inbox(1) == [(first.id, "ada", 2)]


def test_fifty_publishers_at_once_have_one_task(shop, inbox):
    index = shop.make(debounce=0.6, max_wait=0.8)
    index.delay("bob", 0)
    start, outcomes = threading.Barrier(50), []

    def publish(number):
        start.wait(30)
        outcomes.append(index.delay("ada", number))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({result.id for result in outcomes}) == 1
    assert sorted(map(flags, outcomes)) == [(False, False)] + 49 * [(False, True)]
    assert sizes(shop)[1] <= 2
    assert [user for _, user, _ in inbox(2)] == ["bob", "ada"]


def test_a_batch_replaces_as_single_calls_do(shop, inbox):
    index = shop.make(debounce=0.3)

    @shop.task(name="plain", shared=False)
    def plain():
        """Never called."""

    results = crp.send_many([index.s("ada", 1), plain.s(), index.s("ada", 2), index.s("ada", 3)])
    assert [flags(results[at]) for at in (0, 2, 3)] == [(False, False), (False, True), (False, True)]
    assert sizes(shop) == (1, 1, 0)
    inbox.inbox.drain(2)
    assert json.loads(inbox.inbox.messages[1].body)[0] == ["ada", 3]


def test_members_of_a_chain_are_sent_as_they_are(shop):
    index = shop.make(debounce=600)
    with running_worker(shop, concurrency=1, pool="threads"):
        assert chain(index.si("ada", 1), index.si("ada", 2)).apply_async().get(timeout=30) == 2


def test_a_call_that_says_when_it_runs_or_is_tracked_is_refused(shop):
    index = shop.make(debounce=5)
    for option in ({"countdown": 1}, {"eta": "2030-01-01T00:00:00"}):
        [name] = option
        with pytest.raises(InvalidArgument, match=rf"{name} is .* for 'index', whose debounce says when it runs; allowed: none"):
            index.apply_async(("ada",), **option)
    with pytest.raises(InvalidArgument, match=r"track is True for 'index', whose message may be replaced"):
        index.apply_async(("ada",), track=True)


def test_one_for_several_queues_is_not_lost(shop):
    from kombu import Exchange, Queue

    several = Exchange("several", type="topic")
    shop.conf.task_queues = [Queue(name, several, routing_key="all") for name in ("one", "two")]
    index = shop.make(debounce=600)

    def send(number, *queues):
        exchange = {"exchange": "several", "routing_key": "all"} if len(queues) > 1 else {"queue": queues[0]}
        return index.apply_async(("ada", number), **exchange)

    with shop.connection_for_write() as connection:
        for queue in shop.conf.task_queues:
            queue(connection.channel()).declare()
        send(1, "one")
        send(2, "two")
        send(3, "one", "two")
        channel = connection.channel()
        assert [channel.queue_sizes(name).delayed for name in ("one", "two")] == [1, 1]
    pools.reset()


@pytest.mark.parametrize(("options", "error"), [
    ({"debounce": 0}, "option debounce of task 'bad' is 0; allowed: seconds, or a timedelta, from 0.001 s to a year"),
    ({"debounce": "5s"}, "option debounce of task 'bad' is '5s'; allowed: seconds"),
    ({"debounce": True}, "option debounce of task 'bad' is True"),
    ({"debounce": 5, "max_wait": 4}, "option max_wait of task 'bad' is 4; allowed: seconds, or a timedelta, from 5 s to a year"),
    ({"max_wait": 4}, "option max_wait of task 'bad' without debounce; allowed with it"),
    ({"debounce": 5, "unique": "until-success"}, "task 'bad' has the options unique and debounce; allowed: one of them"),
    ({"debounce": 5, "unique_conflict": "keep"}, "option unique_conflict of task 'bad' is 'keep' with debounce, which replaces"),
    ({"unique": "until-start", "unique_conflict": "latest"}, "option unique_conflict of task 'bad' is 'latest'; allowed: keep"),
    ({"unique_conflict": "replace"}, "option unique_conflict of task 'bad' without unique; allowed with it"),
    ({"debounce": 5, "unique_by": ["usr"]}, "option unique_by of task 'bad' has 'usr'; allowed: user"),
])  # fmt: skip
def test_an_option_that_is_not_allowed_names_itself(options, error, shop):
    shop.finalize()
    with pytest.raises(OptionError, match=error):
        shop.task(name="bad", shared=False, **options)(_bad)


def _bad(user):
    del user
