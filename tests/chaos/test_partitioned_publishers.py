"""Publishers whose network fails again and again: each message arrives once (issue B, Shows 4)."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.chaos.ledger import repeats
from tests.chaos.publishers import Publisher
from tests.chaos.state import check_invariants, empty, places
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

QUEUE = "celery"
THREADS = 4
#: After each message, so that publishing takes longer than a few partitions.
PAUSE_S = 0.002
#: Shorter than the longest partition: retries come while the original is still under way.
TIMEOUT_S = 0.5
OPTIONS = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}


def worsen(proxy, chooser):
    """Be a bad network for a while; what a blackhole has held back mostly arrives late."""
    weather = chooser.choice(["blackhole", "late", "lost", "reset", "refuse", "delay"])
    if weather in {"blackhole", "late"}:
        proxy.blackhole()
        time.sleep(chooser.uniform(0, TIMEOUT_S * 3))
        if weather == "blackhole":
            proxy.reset()
    elif weather == "lost":
        proxy.lose_replies()
        time.sleep(chooser.uniform(0, 0.05))
        proxy.reset()
    elif weather == "reset":
        proxy.reset()
    elif weather == "refuse":
        proxy.refuse()
        time.sleep(chooser.uniform(0, 0.2))
    else:
        proxy.delay(0.01)
        time.sleep(chooser.uniform(0, 0.2))
    proxy.heal()
    return weather


def partition(proxy, publisher):
    """Cut a publisher off again and again until it has published all; return how often."""
    chooser = random.Random()
    cuts = 0
    while publisher.is_alive():
        # After some good weather, or it does not get on.
        time.sleep(chooser.uniform(0, 0.3))
        worsen(proxy, chooser)
        cuts += 1
    return cuts


@pytest.mark.parametrize("with_worker", [False, True], ids=["into the queue", "and executed at once"])
def test_each_of_the_published_messages_is_there_once(
    *, with_worker, full, start_server, ledger, chaos_app, chaos_worker, figures
):
    each = 1250 if full else 250
    server = start_server()
    with ExitStack() as stack:
        client = stack.enter_context(server.client())
        proxies = [stack.enter_context(Proxy(lambda: server.port)) for _ in range(THREADS)]
        publishers = [
            Publisher(
                chaos_app(proxy.url(), visibility_timeout=60, broker_transport_options=OPTIONS),
                f"p{number}-",
                length=lambda _: 0,
                most=each,
                pause_s=PAUSE_S,
            )
            for number, proxy in enumerate(proxies)
        ]
        worker = chaos_worker(server.url(), visibility_timeout=60, pool="solo", config={"task_acks_late": True})
        if with_worker:
            worker.start()
        for publisher in publishers:
            publisher.start()
        with ThreadPoolExecutor(THREADS) as pool:
            cuts = sum(pool.map(partition, proxies, publishers))
        for publisher in publishers:
            publisher.finish()
        names = {name for publisher in publishers for name in publisher.names()}
        assert len(names) == THREADS * each
        if not with_worker:
            # Nobody consumes: what is in the queue is all there is.
            assert places(client, QUEUE)["queue"] == len(names)
            worker.start()
        wait_until(lambda: names <= set(ledger.ended()) and empty(client, QUEUE), 60, worker.tail)
        assert worker.stop() == 0
        check_invariants(client)
    figures(
        f"{len(names)} messages from {THREADS} threads, {cuts} partitions: lost {len(names - set(ledger.ended()))}, "
        f"doubled {repeats(ledger.started())}"
    )
    assert repeats(ledger.started()) == 0
    assert set(ledger.ended()) == names
