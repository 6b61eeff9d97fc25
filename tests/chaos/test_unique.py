"""Unique and debounced tasks while workers are killed and connections cut.

Of a unique task never two of a key, and none lost; of a debounced one the last arguments run, in time.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest

from celery_redis_plus.keys import Keys
from tests.chaos.state import check_invariants, empty, places
from tests.support.waiting import wait_until

QUEUE = "unique"
VISIBILITY_TIMEOUT_S = 3
KEYS, PUBLISHERS = 40, 50
#: Of `chaos.debounced`; and seconds more until its message is taken, where a worker that had it was killed.
MAX_WAIT_S, LATEST_S = 1.5, 15


@pytest.fixture(autouse=True)
def _recorded():
    """Leave the judge out, who takes a second message of a name for a repeated one: here that is a retry, or the next task."""


#: What stands at one moment: those whose retry was sent only lack their ack.
STANDING = """
local found = {}
for place = 1, 3 do
  for _, tag in ipairs(redis.call('ZRANGE', KEYS[place], 0, -1)) do
    local payload, retried = unpack(redis.call('HMGET', KEYS[4] .. tag, 'payload', 'retried'))
    if payload and not retried then found[#found + 1] = string.match(payload, '^[^\\n]*') end
  end
end
return found
"""


def standing(client):
    """Return the tasks that wait or are in work, by key."""
    of = Keys().queue(QUEUE)
    found = defaultdict(set)
    for envelope in client.eval(STANDING, 4, of.ready, of.delayed, of.index, of.message):
        headers = json.loads(envelope)["headers"]
        found[headers["x-deduplication-id"]].add(headers["id"])
    return found


class Weather:
    """Kills a worker each four seconds, and cuts a connection now and then."""

    def __init__(self, workers):
        self.workers, self.killed, self.cuts = workers, {}, 0
        self.next_kill = time.monotonic() + 3

    def turn(self, client):
        if time.monotonic() >= self.next_kill:
            victim = random.choice(self.workers)
            pid = victim.pid
            victim.kill()
            self.killed[pid] = time.monotonic()
            victim.start()
            self.next_kill = time.monotonic() + 4
        elif random.random() < 0.1:
            mine = str(client.client_id())
            others = [one["id"] for one in client.client_list() if one["id"] != mine]
            client.client_kill_filter(_id=random.choice(others))
            self.cuts += 1


def overlaps(entries, killed):
    """Yield each start of a task while another one of its key ran: up to its end, or the kill of its worker."""
    running = {}
    for entry in sorted(entries, key=lambda entry: entry.tick):
        key = entry.task.partition(".")[0]
        if entry.event == "end":
            running.pop((key, entry.pid), None)
            continue
        for (name, _), other in running.items():
            if name == key and killed.get(other.worker, float("inf")) > entry.tick:
                yield other, entry
        running[key, entry.pid] = entry


def begun(name, url, chaos_app, chaos_worker):
    """Return the task of this name, and two workers for it."""
    options = {"queues": {QUEUE: {}}, "worker_prefetch_multiplier": 2, "task_default_queue": QUEUE}
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S, **options)
    workers = [
        chaos_worker(url, visibility_timeout=VISIBILITY_TIMEOUT_S, concurrency=2, config=options, queues=[QUEUE]).start()
        for _ in range(2)
    ]
    return app.tasks[name], workers


def publishing(publish):
    """Return threads that publish, each with its number."""
    publishers = [threading.Thread(target=publish, args=(number,)) for number in range(PUBLISHERS)]
    for publisher in publishers:
        publisher.start()
    return publishers


def test_no_two_of_a_key_are_stored_and_none_is_lost(full, own_server, ledger, chaos_app, chaos_worker, figures):
    seconds = 120 if full else 20
    task, workers = begun("chaos.unique", own_server.url(), chaos_app, chaos_worker)
    until, sent, returned = time.monotonic() + seconds, {}, set()

    def publish(number):
        chance = random.Random(number)
        while time.monotonic() < until:
            key, fails = f"k{chance.randrange(KEYS)}", chance.randrange(3)
            result = task.delay(key, fails)
            returned.add(result.id)
            if not result.is_duplicate:
                sent[result.id] = (key, fails)
            time.sleep(chance.random() * 0.1)

    publishers = publishing(publish)
    weather = Weather(workers)
    with own_server.client() as client:
        while time.monotonic() < until:
            assert [key for key, tasks in standing(client).items() if len(tasks) > 1] == []
            weather.turn(client)
            time.sleep(0.05)
        for publisher in publishers:
            publisher.join(60)
        wait_until(lambda: empty(client, QUEUE), 60, lambda: f"{places(client, QUEUE)} {workers[0].tail()}")
        for worker in workers:
            assert worker.stop() == 0
        check_invariants(client)
    entries = ledger.read()
    ended = {entry.task for entry in entries if entry.event == "end"}
    assert returned == set(sent)
    assert [one for one, (key, fails) in sent.items() if f"{key}.{one}.{fails}" not in ended] == []
    assert list(overlaps(entries, weather.killed)) == []
    figures(f"{len(sent)} unique tasks, {len(weather.killed)} kills, {weather.cuts} cuts: none lost, never two of a key")


#: The ids of waiting messages, and how late each is due, ms after its longest wait; without those that came back from a consumer.
WAITING = """
local found = {}
for place = 1, 2 do
  for _, tag in ipairs(redis.call('ZRANGE', KEYS[place], 0, -1)) do
    local payload, claim, since = unpack(redis.call('HMGET', KEYS[3] .. tag, 'payload', 'claim', 'waits_since'))
    local due = place == 2 and redis.call('ZSCORE', KEYS[2], tag) or 0
    if payload and not claim then
      table.insert(found, string.match(payload, '"x%-deduplication%-id": ?"([^"]+)"'))
      table.insert(found, string.format('%d', due - since - ARGV[1]))
    end
  end
end
return found
"""


@dataclass
class Published:
    """A publish of a debounced task: its number, and from when until when it went on."""

    key: str
    number: int
    began: float
    ended: float
    result: Any

    def may_be_last(self, others):
        return not any(other.began > self.ended for other in others)


def delays_of(ones, runs):
    """Check that of each wait the last arguments ran; yield how long after its first publish.

    `ones` are the publishes of one key; `runs` has what ran of it, (task id, number) -> event -> tick.
    """
    of_wait = defaultdict(list)
    for one in ones:
        of_wait[one.result.id].append(one)
    # A wait has one run, perhaps repeated, and the results of all its publishes are that of the run.
    assert sorted(of_wait) == sorted(task_id for task_id, _ in runs)
    assert all("end" in run for run in runs.values())
    assert not any(one.result.is_duplicate for one in ones)
    by_number = {one.number: one for one in ones}
    for (task_id, number), run in runs.items():
        wait = of_wait[task_id]
        assert [one.result.is_replacement for one in wait].count(False) == 1
        assert by_number[number].may_be_last(wait)
        yield run["start"] - min(one.began for one in wait)


def test_the_last_arguments_run_in_time(full, own_server, ledger, chaos_app, chaos_worker, figures):
    seconds = 120 if full else 20
    task, workers = begun("chaos.debounced", own_server.url(), chaos_app, chaos_worker)
    until, numbers, published = time.monotonic() + seconds, itertools.count(), defaultdict(list)

    def publish(number):
        chance = random.Random(number)
        while time.monotonic() < until:
            key, began, number = f"k{chance.randrange(KEYS)}", time.monotonic(), next(numbers)
            result = task.delay(key, number)
            published[key].append(Published(key, number, began, time.monotonic(), result))
            time.sleep(chance.random() * 0.3)

    publishers = publishing(publish)
    weather, of = Weather(workers), Keys().queue(QUEUE)
    with own_server.client() as client:
        while time.monotonic() < until:
            waiting = client.eval(WAITING, 3, of.ready, of.delayed, of.message, int(MAX_WAIT_S * 1000))
            assert len(set(waiting[::2])) == len(waiting[::2]), waiting
            # A delay ends never early: the millisecond that has begun does not count.
            assert max(map(int, waiting[1::2]), default=0) <= 1, waiting
            weather.turn(client)
            time.sleep(0.05)
        for publisher in publishers:
            publisher.join(60)
        wait_until(lambda: empty(client, QUEUE), 60, lambda: f"{places(client, QUEUE)} {workers[0].tail()}")
        for worker in workers:
            assert worker.stop() == 0
        check_invariants(client)
    runs = defaultdict(dict)
    for entry in ledger.read():
        key, task_id, number = entry.task.split(".")
        runs[key].setdefault((task_id, int(number)), {}).setdefault(entry.event, entry.tick)
    delays = [delay for key, ones in published.items() for delay in delays_of(ones, runs[key])]
    assert max(delays) < MAX_WAIT_S + LATEST_S
    delays.sort()
    count = sum(map(len, published.values()))
    figures(
        f"{count} publishes of debounced tasks, {len(delays)} runs, {len(weather.killed)} kills, {weather.cuts} cuts: the last "
        f"arguments ran, {delays[len(delays) // 2]:.2f} s (median), {delays[int(len(delays) * 0.99)]:.2f} s (99 %), "
        f"{delays[-1]:.2f} s (longest) after the first publish"
    )
