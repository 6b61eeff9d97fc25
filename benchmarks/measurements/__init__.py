"""What is measured: one file each; this table says who takes part and how often.

Every module has ``run(bench) -> Figures``, called in a fresh process on a flushed database.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.contenders import BROKERS, FLOOR, KOMBU_REDIS, MEMORY, OURS

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.bench import Bench, Figures

REDIS_ONLY = frozenset({KOMBU_REDIS, OURS})


#: (quick, full) rounds: what takes long and hardly varies is repeated less, what takes a second more.
MANY = (2, 21)
OFTEN = (2, 9)
SEVERAL = (1, 5)
SOME = (1, 3)
ONCE = (1, 1)


@dataclass(frozen=True)
class Measurement:
    """One function of a module of this package."""

    name: str
    module: str
    contenders: frozenset[str]
    function: str = "run"
    rounds: tuple[int, int] = OFTEN
    timeout_s: float = 240.0
    #: Client and server share one core: see docs/benchmark-method.md, "One core".
    one_core: bool = False

    def load(self) -> Callable[[Bench], Figures]:
        """The function that takes the sample."""
        function: Callable[[Bench], Figures] = getattr(
            importlib.import_module(f"benchmarks.measurements.{self.module}"), self.function
        )
        return function


_ALL = (
    Measurement("publish", "publish", BROKERS | {FLOOR, MEMORY}, rounds=MANY, one_core=True),
    Measurement("consume", "consume", BROKERS | {FLOOR, MEMORY}, one_core=True),
    Measurement("delay", "delay", BROKERS | {FLOOR, MEMORY}, rounds=MANY, one_core=True),
    Measurement("solo", "celery_rate", BROKERS | {FLOOR}, "solo", SEVERAL),
    Measurement("prefork", "celery_rate", BROKERS, "prefork", SEVERAL),
    Measurement("threads", "celery_rate", BROKERS, "threads", SEVERAL),
    Measurement("solo-late", "celery_rate", BROKERS, "solo_acks_late", SEVERAL),
    Measurement("prefork-late", "celery_rate", BROKERS, "prefork_acks_late", SEVERAL),
    Measurement("ping", "ping", BROKERS, rounds=SEVERAL),
    Measurement("countdown", "countdown", BROKERS, "idle", SOME),
    Measurement("countdown-far", "countdown", REDIS_ONLY, "behind_far_tasks", ONCE, timeout_s=600),
    Measurement("countdown-burst", "countdown", REDIS_ONLY, "burst", SOME),
    Measurement("queues", "queues", BROKERS, rounds=SOME, one_core=True),
    Measurement("backlog", "backlog", REDIS_ONLY, rounds=ONCE, timeout_s=900, one_core=True),
    Measurement("archive", "archive", frozenset({OURS}), rounds=SOME, one_core=True),
    Measurement("fanout1", "fanout", BROKERS, "one", SEVERAL),
    Measurement("fanout10", "fanout", BROKERS, "ten", SOME),
    Measurement("fanout50", "fanout", BROKERS, "fifty", SOME),
    Measurement("fanout1-acks", "fanout", BROKERS, "one_that_acks", SOME),
    Measurement("fanout10-acks", "fanout", BROKERS, "ten_that_ack", SOME),
    Measurement("fanout50-acks", "fanout", BROKERS, "fifty_that_ack", SOME),
    Measurement("limits", "limits", frozenset({OURS}), rounds=SOME, one_core=True),
    Measurement("memory", "memory", REDIS_ONLY | {FLOOR}, rounds=ONCE),
    Measurement("idle", "idle", REDIS_ONLY, rounds=SOME),
    Measurement("close", "closing", BROKERS, rounds=SOME),
    Measurement("shutdown", "shutdown", BROKERS, rounds=SOME),
)
MEASUREMENTS: dict[str, Measurement] = {measurement.name: measurement for measurement in _ALL}
