"""Every figure of the report, in its order, and what it must reach.

The thresholds live here and nowhere else. The report prints them; no test asserts a timing. Some are what was measured on
23 November 2026, with 5 % room: they tell that something became worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Of(Enum):
    """What a target is compared with."""

    RATIO = "ours / kombu redis"
    VALUE = "ours"


@dataclass(frozen=True)
class Target:
    """``must`` is the least that is acceptable, ``aim`` what the design promises."""

    of: Of
    must: float
    aim: float | None = None
    high_is_good: bool = False

    def met(self, value: float) -> bool:
        """Whether the must is reached."""
        return value >= self.must if self.high_is_good else value <= self.must

    def aimed(self, value: float) -> bool:
        """Whether the aim is met too; a target without an aim is content with its must."""
        aim = self.must if self.aim is None else self.aim
        return value >= aim if self.high_is_good else value <= aim


@dataclass(frozen=True)
class Figure:
    """One line of the report. ``key`` is ``name.kind`` as the measurements return it."""

    key: str
    label: str
    unit: str
    target: Target | None = None


def _ratio_at_most(must: float, aim: float | None = None) -> Target:
    return Target(Of.RATIO, must, aim)


def _ratio_at_least(must: float, aim: float | None = None) -> Target:
    return Target(Of.RATIO, must, aim, high_is_good=True)


def _at_most(must: float, aim: float | None = None) -> Target:
    return Target(Of.VALUE, must, aim)


def _flow(name: str, label: str, client: Target | None = None, server: Target | None = None) -> list[Figure]:
    return [
        Figure(f"{name}.client_us", f"{label}: client CPU", "µs", client),
        Figure(f"{name}.server_us", f"{label}: server CPU", "µs", server),
        Figure(f"{name}.rate", f"{label}: rate on one core", "/s"),
        Figure(f"{name}.commands", f"{label}: commands executed", ""),
        Figure(f"{name}.bytes_in", f"{label}: bytes to the server", "B"),
        Figure(f"{name}.bytes_out", f"{label}: bytes back", "B"),
    ]


def _celery(name: str, label: str, rate: Target, through: Target, first: Target | None = None) -> list[Figure]:
    figures = [
        Figure(f"{name}.rate", f"{label}: rate", "/s", rate),
        Figure(f"{name}.worker_us", f"{label}: CPU of all worker processes", "µs"),
        Figure(f"{name}.server_us", f"{label}: server CPU", "µs"),
        Figure(f"{name}.through_us", f"{label}: server CPU from publish to ack", "µs", through),
    ]
    if first:
        figures.append(Figure(f"{name}.first_ms", f"{label}: first task after ready", "ms", first))
    return figures


def _fanout(name: str, label: str, rate: Target | None = None) -> list[Figure]:
    return [
        Figure(f"{name}.rate", f"fanout to {label}: delivered", "/s", rate),
        Figure(f"{name}.client_us", f"fanout to {label}: subscriber CPU per delivery", "µs"),
        Figure(f"{name}.server_us", f"fanout to {label}: server CPU per delivery", "µs"),
        Figure(f"{name}.publish_us", f"fanout to {label}: publisher CPU per broadcast", "µs"),
    ]


#: Server CPU from publish to ack: at a prefetch of 10 or more, and at 1.
MANY_AT_ONCE = _ratio_at_most(0.8, 0.6)
ONE_AT_A_TIME = _ratio_at_most(1.2, 1.0)
#: Per mille of a queue that is filled under the throttle.
THROTTLE_SHARES = (250, 550, 750, 900, 975)

FIGURES: tuple[Figure, ...] = (
    *_flow("publish", "publish", _ratio_at_most(0.355, 0.20), _ratio_at_most(1.8, 1.3)),
    *_flow("consume100", "consume + ack, prefetch 100", _ratio_at_most(0.12, 0.05), _ratio_at_most(0.45, 0.35)),
    *_flow("consume10", "consume + ack, prefetch 10", _ratio_at_most(0.12, 0.05), _ratio_at_most(0.6, 0.45)),
    *_flow("consume1", "consume + ack, prefetch 1", _ratio_at_most(0.25, 0.15), _ratio_at_most(1.2, 0.9)),
    *_flow("delay", "task.delay()", _ratio_at_most(0.80, 0.66)),
    *_celery("solo", "Celery solo", _ratio_at_least(3.8), MANY_AT_ONCE, _at_most(50)),
    Figure("solo.cpu_us", "Celery solo: worker CPU per task", "µs", _ratio_at_most(0.25, 0.16)),
    *_celery("prefork", "Celery prefork -c2", _ratio_at_least(2.4, 3.3), MANY_AT_ONCE, _at_most(50)),
    *_celery("threads", "Celery threads -c4", _ratio_at_least(3.9), MANY_AT_ONCE, _at_most(50)),
    *_celery("solo_late", "solo, acks_late, multiplier 1", _ratio_at_least(1.9), ONE_AT_A_TIME),
    *_celery("prefork_late", "prefork, acks_late, multiplier 1", _ratio_at_least(1.7, 2.6), ONE_AT_A_TIME),
    Figure("ping.p50_ms", "ping on an idle queue: p50", "ms", _ratio_at_most(0.8, 0.5)),
    Figure("ping.p99_ms", "ping on an idle queue: p99", "ms"),
    Figure("countdown.late_p50_ms", "countdown, idle worker: p50 late", "ms"),
    Figure("countdown.late_p99_ms", "countdown, idle worker: p99 late", "ms", _at_most(30, 8)),
    Figure("countdown.late_max_ms", "countdown, idle worker: most late", "ms"),
    Figure("countdown.early", "countdown, idle worker: early", "", _at_most(0)),
    Figure("countdown.missing", "countdown, idle worker: missing", "", _at_most(0)),
    Figure("far.late_p99_ms", "behind 50,000 far tasks: p99 late", "ms", _at_most(30)),
    Figure("far.early", "behind 50,000 far tasks: early", "", _at_most(0)),
    Figure("far.missing", "behind 50,000 far tasks: missing", "", _at_most(0)),
    Figure("far.worker_growth_mb", "behind 50,000 far tasks: worker grew by", "MB", _at_most(5)),
    Figure("burst.late_p99_ms", "3,000 due within 10 s: p99 late", "ms", _at_most(100, 10)),
    Figure("burst.server_us", "3,000 due within 10 s: server CPU from publish to ack", "µs"),
    Figure("burst.early", "3,000 due within 10 s: early", "", _at_most(0)),
    Figure("burst.missing", "3,000 due within 10 s: missing", "", _at_most(0)),
    *_flow("queues100", "100 queues on one consumer", _ratio_at_most(0.12)),
    Figure("backlog_small.client_us", "3,000 queued: client CPU", "µs"),
    Figure("backlog_deep.client_us", "500,000 queued: client CPU", "µs"),
    Figure("backlog.growth", "500,000 queued against 3,000: CPU", "x", _at_most(1.1)),
    Figure("noise.client", "a second plain queue: client CPU against the first", "x"),
    Figure("noise.wall", "a second plain queue: time against the first", "x"),
    Figure("limits.client", "far from its limits, throttled: client CPU against plain", "x", _at_most(1.21)),
    Figure("limits.wall", "far from its limits, throttled: time against plain", "x", _at_most(1.24)),
    *(Figure(f"throttle.at{share}", f"throttle, 200 places, {share / 10:g} % full: rate", "/s") for share in THROTTLE_SHARES),
    Figure("archive.noise", "publish + consume, a second queue without events: CPU against the first", "x"),
    Figure("archive.off", "publish + consume, without events: CPU against scripts that know of none", "x", _at_most(1.01)),
    # A quarter of the throughput less is a third more time.
    Figure("archive.on", "publish + consume, with events: CPU against without", "x", _at_most(1.33)),
    Figure("archive.on_wall", "publish + consume, with events: time against without", "x", _at_most(1.33)),
    Figure("archive.event_us", "an event: time of the server's scripts, claims and acks in batches of 10", "µs", _at_most(9.7)),
    Figure("archive.event_bytes", "an event, mean of publish, claim, ack: server memory", "B", _at_most(150)),
    *_fanout("fanout1", "1 without acks", _ratio_at_least(1.5, 3)),
    # A publisher that waits for each confirmation bounds these two, whatever the transport (docs/design/0007-fanout.md).
    *_fanout("fanout", "10 without acks"),
    *_fanout("fanout50", "50 without acks"),
    *_fanout("fanout1_acks", "1 that acks", _ratio_at_least(1.5, 3)),
    *_fanout("fanout10_acks", "10 that ack", _ratio_at_least(8, 12)),
    *_fanout("fanout50_acks", "50 that ack", _ratio_at_least(8, 12)),
    Figure("memory.queued_bytes", "server memory: queued task", "B", _ratio_at_most(1.0, 0.93)),
    Figure("memory.delayed_bytes", "server memory: delayed task", "B", _ratio_at_most(1.0, 0.93)),
    Figure("idle.commands", "idle prefork worker: commands", "/s", _at_most(2)),
    Figure("idle.cpu_percent", "idle prefork worker: CPU", "%", _at_most(0.15)),
    Figure("close.s", "closing an idle consumer", "s", _at_most(0.2)),
    Figure("shutdown.s", "warm shutdown of an idle worker", "s", _at_most(3)),
)
