"""What limits cost a publisher that is far from them: blocks in turn over three queues, in one process on one connection.

A second plain queue shows the noise. Tenth percentiles of many short blocks: what else runs on the machine only adds. And the
throttle, at work: the rate of one publisher by how full the queue is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kombu import Producer, Queue

from benchmarks.bench import BODY, Bench, Figures

PLAIN, AGAIN, LIMITED = "bench.plain", "bench.again", "bench.limited"
#: Far enough that nothing measured here comes near.
ARGUMENTS = {"x-max-pending": 10_000_000, "x-throttle": True, "x-overflow": "block"}
BLOCK = 150
#: Places of the queue that is filled under the throttle, and the shares at which its rate is told.
PLACES = 200
SHARES = (0.25, 0.55, 0.75, 0.9, 0.975)


def run(bench: Bench) -> Figures:
    """Return the ratios to the plain queue, and the throttle's rates."""
    with bench.connect() as connection:
        channel = connection.channel()
        publish = Producer(channel).publish
        queues = [Queue(PLAIN), Queue(AGAIN), Queue(LIMITED, queue_arguments=ARGUMENTS)]
        for queue in queues:
            queue(channel).declare()
        cpu: dict[str, list[float]] = {queue.name: [] for queue in queues}
        wall: dict[str, list[float]] = {queue.name: [] for queue in queues}
        for turn in range(bench.size(20, 100)):
            for queue in queues if turn % 2 else queues[::-1]:
                cpu_s, wall_s = time.process_time(), time.perf_counter()
                for _ in range(BLOCK):
                    publish(BODY, routing_key=queue.name, exchange="", serializer="json")
                # The first turn's also learns what the queue is.
                wall[queue.name].append(time.perf_counter() - wall_s)
                cpu[queue.name].append(time.process_time() - cpu_s)
            if turn % 20 == 19:
                for queue in queues:
                    channel.queue_purge(queue.name)
        throttle = _throttle(channel, publish)
        for queue in queues:
            channel.queue_delete(queue.name)
    figures = {}
    for name, key in ((AGAIN, "noise"), (LIMITED, "limits")):
        figures[f"{key}.client"] = _low(cpu[name]) / _low(cpu[PLAIN])
        figures[f"{key}.wall"] = _low(wall[name]) / _low(wall[PLAIN])
    return {**figures, **throttle}


def _throttle(channel: object, publish: Callable[..., object]) -> Figures:
    queue = Queue("bench.throttle", queue_arguments={"x-max-pending": PLACES, "x-throttle": True})(channel)
    queue.declare()
    spent = []
    for _ in range(int(PLACES * SHARES[-1]) + 3):
        begin = time.perf_counter()
        publish(BODY, routing_key=queue.name, exchange="", serializer="json")
        spent.append(time.perf_counter() - begin)
    queue.delete()
    # Three publishes around each share: the asymptote is steep.
    return {
        f"throttle.at{share * 1000:.0f}": 3 / sum(spent[int(PLACES * share) - 1 : int(PLACES * share) + 2]) for share in SHARES
    }


def _low(values: list[float]) -> float:
    return sorted(values)[len(values) // 10]
