"""Unique tasks while workers are killed and connections cut: never two of a key, and none lost."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict

import pytest

from celery_redis_plus.keys import Keys
from tests.chaos.state import check_invariants, empty, places
from tests.support.waiting import wait_until

QUEUE = "unique"
VISIBILITY_TIMEOUT_S = 3
KEYS, PUBLISHERS = 40, 50


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


def test_no_two_of_a_key_are_stored_and_none_is_lost(full, own_server, ledger, chaos_app, chaos_worker, figures):
    seconds, url = 120 if full else 20, own_server.url()
    options = {"queues": {QUEUE: {}}, "worker_prefetch_multiplier": 2, "task_default_queue": QUEUE}
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S, **options)
    task = app.tasks["chaos.unique"]
    workers = [
        chaos_worker(url, visibility_timeout=VISIBILITY_TIMEOUT_S, concurrency=2, config=options, queues=[QUEUE]).start()
        for _ in range(2)
    ]
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

    publishers = [threading.Thread(target=publish, args=(number,)) for number in range(PUBLISHERS)]
    for publisher in publishers:
        publisher.start()
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
