"""``python -m benchmarks.groups``: what message groups cost, and what a noisy group does to the others.

`throughput` publishes and consumes 20,000 messages of 10,000 groups, beside a plain queue. `noisy` lets one group publish a
backlog while others publish a message now and then, and measures how long theirs wait. One process publishes and consumes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kombu

from celery_redis_plus.testing.server import EmbeddedServer

#: Arguments of the queues that are compared.
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "concurrency": {"x-group-concurrency": 1},
    "fair": {"x-fair": True},
}
BODY = "x" * 100


@contextmanager
def channel_of(arguments: dict[str, Any]) -> Iterator[Any]:
    """Start a server, and yield a channel on which the queue `q` is declared."""
    with EmbeddedServer() as server, kombu.Connection(server.url()) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments=arguments)
        yield channel


def throughput(messages: int, groups: int, prefetch: int) -> None:
    """Print messages a second for publishing and for consuming with acks, and the server's share of the latter."""
    base: dict[str, float] = {}
    for name, arguments in QUEUES.items():
        with channel_of(arguments) as channel:
            producer, client = kombu.Producer(channel), channel.connection.client
            before, began = cpu_s(channel), time.perf_counter()
            for number in range(messages):
                producer.publish(BODY, routing_key="q", headers={"x-message-group": f"g{number % groups}"})
            published = messages / (time.perf_counter() - began)
            publish_us = (cpu_s(channel) - before) / messages * 1e6
            taken = 0

            def take(message: kombu.Message) -> None:
                nonlocal taken
                message.ack()
                taken += 1

            consumer = kombu.Consumer(
                channel, [kombu.Queue("q", durable=True, queue_arguments=arguments)], on_message=take, prefetch_count=prefetch
            )
            before = cpu_s(channel)
            began = time.perf_counter()
            with consumer:
                while taken < messages:
                    client.drain_events(timeout=30)
            consumed = messages / (time.perf_counter() - began)
            server_us = (cpu_s(channel) - before) / messages * 1e6
            base.setdefault("published", published)
            base.setdefault("consumed", consumed)
            print(
                f"{name}: published {published:,.0f}/s ({published / base['published']:.2f}), server {publish_us:.0f} us; "
                f"consumed {consumed:,.0f}/s ({consumed / base['consumed']:.2f}), server {server_us:.0f} us a message"
            )


def cpu_s(channel: Any) -> float:
    """Return the processor time of the server so far."""
    text = channel.session.commands.command("INFO", "cpu").decode()
    used = dict(line.split(":") for line in text.split() if ":" in line)
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def noisy(backlog: int, others: int, work_s: float) -> None:
    """Print how long the messages of quiet groups wait while one group has a backlog, beside the same without it."""
    for name, arguments in QUEUES.items():
        for count in (0, backlog):
            with channel_of(arguments) as channel:
                waits = sorted(waits_of(channel, arguments, count, others, work_s))
            p95 = waits[int(len(waits) * 0.95)]
            print(
                f"{name}, backlog {count:,}: waits of quiet groups: mean {statistics.mean(waits) * 1000:.1f} ms, "
                f"p95 {p95 * 1000:.1f} ms, longest {waits[-1] * 1000:.1f} ms"
            )


def waits_of(channel: Any, arguments: dict[str, Any], backlog: int, others: int, work_s: float) -> list[float]:
    """Return the seconds that each message of the quiet groups has waited: one a group, published one after the other."""
    producer, client, waits = kombu.Producer(channel), channel.connection.client, []
    for _ in range(backlog):
        producer.publish(BODY, routing_key="q", headers={"x-message-group": "noisy"})

    def take(message: kombu.Message) -> None:
        # At most as many messages come as before there is a next quiet one: the load is below what the consumer carries.
        time.sleep(work_s)
        if "at" in message.headers:
            waits.append(time.time() - message.headers["at"])
        message.ack()

    consumer = kombu.Consumer(
        channel, [kombu.Queue("q", durable=True, queue_arguments=arguments)], on_message=take, prefetch_count=1
    )
    due = time.perf_counter()
    sent = 0
    with consumer:
        while len(waits) < others and (backlog == 0 or time.perf_counter() < due + others * work_s * 20):
            while sent < others and time.perf_counter() >= due + sent * work_s * 5:
                headers = {"x-message-group": f"quiet{sent % 99}", "at": time.time()}
                producer.publish(BODY, routing_key="q", headers=headers)
                sent += 1
            try:
                client.drain_events(timeout=work_s)
            except TimeoutError:
                continue
    return waits or [float("inf")]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["throughput", "noisy"])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--prefetch", type=int, default=10)
    options = parser.parse_args()
    if options.what == "throughput":
        throughput(options.messages, options.groups, options.prefetch)
    else:
        noisy(options.messages, 300, 0.005)


if __name__ == "__main__":
    main()
