"""Eight publishers against the limit of a fanout exchange, with a slow and a fast subscriber."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import kombu
import pytest

from celery_redis_plus import signals
from tests.support.publishers import PublishingProcess

#: Within one script, so that no publisher comes between: what the slowest subscriber has not processed of the stream.
SAMPLE = """
local slowest = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
return math.min((redis.call('HGET', KEYS[2], 'count') or 0) - slowest[2], redis.call('XLEN', KEYS[1]))
"""
PUBLISHERS = 8


class Sampler:
    """Looks at how much is pending as often as it can."""

    def __init__(self, client):
        self._script = client.register_script(SAMPLE)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples = self.most = 0

    def _run(self):
        while not self._stop.is_set():
            self.most = max(self.most, self._script(keys=["/0.limited", "fanout:{/0.limited}", "cursors:{/0.limited}"]))
            self.samples += 1
            time.sleep(0.0005)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(10)


@pytest.mark.parametrize("overflow", ["block", "reject-publish", "drop-head"])
def test_eight_processes_never_exceed_the_limit_of_an_exchange(redis_client, broker_url, overflow, full, figures):
    limit, each = (1000, 1500) if full else (100, 200)
    of = kombu.Exchange("limited", "fanout", durable=True, arguments={"x-max-pending": limit, "x-overflow": overflow})
    taken = {"slow": [], "fast": []}
    missed = {"slow": 0, "fast": 0}

    def notice(signal):
        if isinstance(signal, signals.Missed):
            missed[signal.queue] += signal.count

    def take(_body, message):
        queue = message.delivery_tag.partition(".")[2].partition("/")[0]
        if queue == "slow":
            time.sleep(0.001)
        taken[queue].append(message.payload)
        message.ack()

    with ExitStack() as stack:
        stack.callback(signals.connect(notice))
        connection = stack.enter_context(kombu.Connection(broker_url))
        queues = [kombu.Queue(name, of, durable=True) for name in taken]
        stack.enter_context(kombu.Consumer(connection.channel(), queues, callbacks=[take]))
        sampler = stack.enter_context(Sampler(redis_client))
        processes = [
            stack.enter_context(PublishingProcess(broker_url, "", each, f"p{n}", exchange="limited")) for n in range(PUBLISHERS)
        ]
        quiet_at = None
        while quiet_at is None or time.monotonic() < quiet_at:
            try:
                connection.drain_events(timeout=0.1)
                quiet_at = None
            except TimeoutError:
                if quiet_at is None and not any(process.running for process in processes):
                    quiet_at = time.monotonic() + 1
        outcomes = [process.outcome() for process in processes]
    published, refused = (sum(outcome[name] for outcome in outcomes) for name in ("published", "refused"))
    figures(
        f"{overflow}: published {published}, refused {refused}, taken {len(taken['slow'])} and {len(taken['fast'])}, missed "
        f"{missed['slow']} and {missed['fast']}; at most {sampler.most} of {limit} pending in {sampler.samples} samples"
    )
    assert sampler.samples > 20
    assert limit * 0.8 < sampler.most <= limit
    assert published + refused == PUBLISHERS * each
    for queue, bodies in taken.items():
        assert len(bodies) + missed[queue] == published, queue
        for name in (f"p{n}-" for n in range(PUBLISHERS)):
            numbers = [int(body.removeprefix(name)) for body in bodies if body.startswith(name)]
            assert numbers == sorted(set(numbers)), f"{queue} of {name}"
    assert (refused > 0) == (overflow == "reject-publish")
    assert (missed["slow"] > 0) == (overflow == "drop-head")
