"""The checks that measure: how fast the server answers, and whether its clock is that of this host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from celery_redis_plus.admin.diagnosis.finding import ADVICE, DANGER, OK, Finding

if TYPE_CHECKING:
    from celery_redis_plus.admin.diagnosis.examined_broker import ExaminedBroker

#: How often the server is asked, and for how many seconds at most.
PINGS, PINGING_S = 200, 2.0
#: Milliseconds of one answer of a hundred from which on there is advice, and danger.
LATENCY_ADVICE_MS, LATENCY_DANGER_MS = 20.0, 200.0
#: Seconds between the two clocks from which on there is advice, and danger.
CLOCK_ADVICE_S, CLOCK_DANGER_S = 1.0, 30.0


def latency(broker: ExaminedBroker) -> Iterator[Finding]:
    """How long the server takes for an answer: p50, p99, the slowest."""
    took: list[float] = []
    end = time.monotonic() + PINGING_S
    while len(took) < PINGS and (not took or time.monotonic() < end):
        begun = time.perf_counter()
        broker.commands.command("PING")
        took.append((time.perf_counter() - begun) * 1000)
    took.sort()
    half, most, slowest = took[len(took) // 2], took[len(took) * 99 // 100], took[-1]
    text = f"PING takes {half:.2f} ms (p50), {most:.2f} ms (p99), {slowest:.2f} ms (slowest of {len(took)})"
    level = DANGER if most >= LATENCY_DANGER_MS else ADVICE if most >= LATENCY_ADVICE_MS else OK
    advice = "Look at SLOWLOG GET and at the CPU of the server, and at the network between here and there." if level != OK else ""
    values = {"p50_ms": round(half, 3), "p99_ms": round(most, 3), "slowest_ms": round(slowest, 3), "pings": len(took)}
    yield Finding("latency", level, text, advice, values)


def clock(broker: ExaminedBroker) -> Iterator[Finding]:
    """How far the server's clock is ahead of this host's."""
    before = time.time()
    seconds, micros = broker.commands.command("TIME")
    after = time.time()
    ahead = int(seconds) + int(micros) / 1e6 - (before + after) / 2
    # The answer may have been made at any moment in between.
    certain = max(0.0, abs(ahead) - (after - before) / 2)
    values = {"ahead_s": round(ahead, 3), "uncertain_s": round((after - before) / 2, 3)}
    if certain < CLOCK_ADVICE_S:
        yield Finding("clock", OK, f"the server's clock is this host's, within {certain + (after - before):.3f} s", "", values)
        return
    text = f"the server's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    advice = "Let NTP set both: tasks with an eta, a countdown or expires that are published here come at another time."
    yield Finding("clock", DANGER if certain >= CLOCK_DANGER_S else ADVICE, text, advice, values)
