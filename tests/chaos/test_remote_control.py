"""Remote control while the workers' connections are cut, and what it leaves behind (issue E, Shows 3 and 4)."""

import random
import threading
import time

import pytest

from tests.chaos.state import check_invariants
from tests.support.waiting import wait_until

PREFIX = "celery-redis-plus:"
VISIBILITY_TIMEOUT_S = 60
TIMEOUT_S = 2.0


class Scissors(threading.Thread):
    """Cuts all connections of every worker each `every_s` seconds, one worker after the other; notes when each was cut."""

    def __init__(self, server, names, every_s):
        super().__init__(daemon=True)
        self.client = server.client()
        self.names, self.every_s = names, every_s
        self.cuts = {name: [] for name in names}
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(self.every_s / len(self.names)):
            name = min(self.names, key=lambda name: self.cuts[name][-1:])
            self.cuts[name].append(time.monotonic())
            for row in self.client.client_list():
                if row["name"] == name:
                    self.client.client_kill_filter(_id=row["id"])

    def end(self):
        self.ended.set()
        self.join()
        self.client.close()


@pytest.mark.parametrize("pool", ["solo"])
def test_every_worker_answers_pings_unless_it_was_just_cut(*, pool, full, own_server, chaos_app, chaos_worker, figures):
    rounds, count = (100, 5) if full else (8, 3)
    url = own_server.url()
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S)
    workers = {}
    for number in range(count):
        config = {
            "broker_transport_options": {"visibility_timeout": VISIBILITY_TIMEOUT_S, "client_name": f"w{number}"},
            "broker_connection_retry": True,
        }
        worker = chaos_worker(url, visibility_timeout=VISIBILITY_TIMEOUT_S, pool=pool, config=config, name=f"ping{number}")
        workers[f"w{number}"] = worker.start(wait=False)
    for worker in workers.values():
        worker.wait_until_ready(60)
    wait_until(lambda: len(app.control.ping(timeout=TIMEOUT_S, limit=count)) == count, 30)
    scissors = Scissors(own_server, list(workers), 1.0)
    scissors.start()
    missing, excused, answers = [], 0, 0
    for number in range(rounds):
        # Anywhere between two cuts.
        time.sleep(random.uniform(0, 0.5))
        asked = time.monotonic()
        replies = app.control.ping(timeout=TIMEOUT_S, limit=count)
        until = time.monotonic()
        answered = {next(iter(reply)).split("@")[0] for reply in replies}
        answers += len(answered)
        for name, worker in workers.items():
            if worker.name in answered:
                continue
            if any(asked <= cut <= until for cut in scissors.cuts[name]):
                excused += 1
            else:
                missing.append((number, name))
    scissors.end()
    assert missing == []
    assert answers > rounds * count / 2
    figures(
        f"{rounds} rounds of ping to {count} workers, {sum(map(len, scissors.cuts.values()))} cuts: {answers} answers, {excused} "
        "missing from workers that were cut within the reply's own timeout, no other one"
    )


@pytest.mark.timeout(1200)
def test_remote_control_and_workers_that_come_and_go_leave_no_key(*, full, own_server, chaos_app, chaos_worker, figures):
    calls, visits, at_once = (1000, 100, 4) if full else (60, 4, 2)
    url = own_server.url()
    # What would take minutes takes seconds.
    quick = {"transient_queue_ttl": 5, "publish_dedup_window": 5, "subscriber_timeout": 5, "consumer_heartbeat_timeout": 5}
    config = {
        "broker_transport_options": {"visibility_timeout": 60, **quick},
        "event_queue_expires": 5,
        "control_queue_expires": 5,
    }
    app = chaos_app(url, visibility_timeout=60)
    app.conf.update(config)

    def visit(size):
        workers = [chaos_worker(url, visibility_timeout=60, pool="solo", config=config, quiet=False) for _ in range(size)]
        for worker in workers:
            worker.start(wait=False)
        for worker in workers:
            worker.wait_until_ready(60)
        return workers

    with own_server.client() as client:

        def keys():
            """All but what expires by itself, whatever happens.

            That is a publisher's last number, a wake-up, the news of a death, and that an exchange's bindings were removed.
            """
            passing = (b"producer:", b"client_wakeup:", b"dead_subscribers:")
            found = [key for key in client.scan_iter() if not key.startswith(passing)]
            return {key.decode() for key in found if not (key.startswith(b"binding:") and client.pttl(key) > 0)}

        [active_tasks] = visit(1)
        assert app.control.ping(timeout=2, limit=1)
        # A janitor that finds a reply queue alive looks again after two minutes.
        wait_until(lambda: not [one for one in keys() if "reply" in one], 200, keys)
        before = keys()
        for number in range(visits // at_once):
            workers = visit(at_once)
            for _ in range(calls * at_once // visits):
                app.control.ping(timeout=1, limit=at_once + 1)
            for worker in workers:
                if number % 2:
                    worker.stop()
                else:
                    worker.kill()
        # A killed worker's subscriber has its time, a second chance of 30 s, and a janitor that looks each 30 s.
        wait_until(lambda: keys() <= before, 300, lambda: sorted(keys() - before), interval_s=1)
        after = keys()
        check_invariants(client)
    active_tasks.stop()
    figures(
        f"{calls} remote-control calls, {visits} workers come and gone, half of them killed: {len(before)} keys -> {len(after)}"
    )
