"""Limiters against their definition: twenty consumers that are killed, and a server whose clock steps."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from kombu import Connection, Producer

import celery_redis_plus  # noqa: F401 - makes kombu know the scheme
from celery_redis_plus.events import FIELD, Event, decode
from celery_redis_plus.keys import Keys
from tests.chaos.servers import set_clock, stormy_server
from tests.chaos.state import check_invariants
from tests.support.replies import stream_entries
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import redis

QUEUE = "limited"
PROCESSES, CONNECTIONS, TASK_S = 5, 4, 0.05
#: Shape -> the limiter, and a cost for each message.
LIMITERS = {
    "bucket": ("bucket:50/s burst=10", lambda: 1),
    "window": ("window:40/s window", lambda: 1),
    "cost": ("cost:200/s burst=40", lambda: random.randint(1, 10)),
    "concurrency": ("concurrency:concurrency=4", lambda: 1),
}
#: By how much the clock of the server steps.
STEP_S = -40.0


@pytest.fixture(autouse=True)
def _recorded():
    """Leave the judge out, who knows no consumer of this kind."""


class Claim:
    """A message in work, in seconds of the server's clock as it would be without steps."""

    def __init__(self, begun: float, cost: float) -> None:
        self.begun, self.ended, self.cost = begun, float("inf"), cost


def claims_of(events: Iterable[Event]) -> dict[str, list[Claim]]:
    """Return the claims of each shape. The task's id of a message has its shape and cost."""
    found, running, told, offset, last = defaultdict(list), {}, {}, 0.0, None
    for event in events:
        seconds = event.ts / 1e6
        if last is not None and abs(seconds - last) > abs(STEP_S) / 2:
            # Nothing else lasts so long.
            offset -= round((seconds - last) / STEP_S) * STEP_S
        last = seconds
        seconds += offset
        if event.event == "published":
            told[event.id] = event.task_id.split("/")
        elif event.event == "claimed":
            shape, cost, _ = told[event.id]
            running[event.id] = Claim(seconds, float(cost))
            found[shape].append(running[event.id])
        elif event.id in running and event.event in {"acked", "requeued", "recovered", "retried", "dead_lettered"}:
            running.pop(event.id).ended = seconds
    return found


def over_bucket(claims: list[Claim], rate: float, burst: float) -> list[str]:
    """Return where more was taken than a bucket ever has."""
    tokens, last, wrong = burst, claims[0].begun, []
    for claim in claims:
        tokens = min(burst, tokens + (claim.begun - last) * rate) - claim.cost
        last = claim.begun
        # The events have microseconds, the bucket has thousandths of a millisecond.
        if tokens < -0.01:
            wrong.append(f"{claim.begun:.6f}: {tokens:.3f} tokens")
    return wrong


def most_in_work(claims: list[Claim]) -> int:
    """Return how many were in work at one moment."""
    moments = sorted(
        [(claim.begun, 1) for claim in claims] + [(claim.ended, -1) for claim in claims], key=lambda at: (at[0], at[1])
    )
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def busy_s(claims: list[Claim], start: float, end: float) -> float:
    return sum(max(min(claim.ended, end) - max(claim.begun, start), 0.0) for claim in claims)


def server_seconds(client: redis.Redis) -> float:
    seconds, microseconds = client.time()
    return seconds + microseconds / 1e6


def judge(claims: dict[str, list[Claim]], start: float) -> Iterator[tuple[str, list[str], float]]:
    """Yield each shape, what is wrong with it, and which share of what is allowed was used from `start` on."""
    end = max(claim.begun for found in claims.values() for claim in found) - 1
    for shape, rate, burst in (("bucket", 50, 10), ("cost", 200, 40)):
        used = sum(claim.cost for claim in claims[shape] if start <= claim.begun <= end)
        yield shape, over_bucket(claims[shape], rate, burst), used / (rate * (end - start))
    window = [claim.begun for claim in claims["window"]]
    wrong = [f"{first:.6f} {last:.6f}" for first, last in zip(window, window[40:], strict=False) if last - first < 0.999]
    yield "window", wrong, sum(start <= begun <= end for begun in window) / (40 * (end - start))
    most, busy = most_in_work(claims["concurrency"]), busy_s(claims["concurrency"], start, end)
    yield "concurrency", [f"{most} in work"] if most > 4 else [], busy / (4 * (end - start))


def test_no_limiter_lets_more_through_under_kills_and_a_step_of_the_clock(*, full, tmp_path, figures):
    seconds, kills = (120, 20) if full else (14, 3)
    clock = set_clock(tmp_path / "clock", of_server=True)
    processes: list[subprocess.Popen[bytes]] = []
    with stormy_server(tmp_path, clock) as server, Connection(server.url()) as connection:

        def start_process() -> subprocess.Popen[bytes]:
            arguments = [server.url(), QUEUE, str(CONNECTIONS), str(TASK_S)]
            return subprocess.Popen([sys.executable, "-m", "tests.chaos.limited_consumer", *arguments], cwd=ROOT)

        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-event-log": True})
        producer = Producer(channel)
        for number in range(90 * seconds):
            for shape, (text, cost_of) in LIMITERS.items():
                cost = cost_of()
                said = text if cost == 1 else f"{text} cost={cost}"
                headers = {"x-limiter": said, "id": f"{shape}/{cost}/{number}", "task": "limited"}
                producer.publish("{}", routing_key=QUEUE, headers=headers, content_type="text/plain", content_encoding="utf-8")
        try:
            processes += [start_process() for _ in range(PROCESSES)]
            with server.client() as client:
                wait_until(lambda: client.zcard(Keys().queue(QUEUE).consumers) == PROCESSES * CONNECTIONS, 60)
                all_up = server_seconds(client)
            began = time.monotonic()
            moments = sorted(random.uniform(4, seconds * 0.9) for _ in range(kills))
            stepped = clock is None
            while time.monotonic() - began < seconds:
                passed = time.monotonic() - began
                if moments and passed > moments[0]:
                    moments.pop(0)
                    victim = random.randrange(PROCESSES)
                    processes[victim].kill()
                    processes[victim].wait()
                    processes[victim] = start_process()
                if not stepped and passed > seconds / 2:
                    clock.set(STEP_S)
                    stepped = True
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        with server.client() as client:
            events = [decode(values[FIELD]) for _, values in stream_entries(client, Keys().queue(QUEUE).events)]
            check_invariants(client)
    claims = claims_of(events)
    for shape, wrong, share in judge(claims, all_up):
        assert wrong == [], shape
        figures(
            f"{shape}: {len(claims[shape])} claims, {share:.3f} of what is allowed, {kills} kills, clock stepped: {bool(clock)}"
        )
