"""A subscriber of the fanout exchange `news` in a process of its own: URL QUEUE ACTION. Prints `ready`, then obeys.

ACTION: `ack`, `reject`, or `sit`, which takes the message and does nothing with it.
"""

from __future__ import annotations

import sys

import kombu

import celery_redis_plus  # noqa: F401 - makes kombu know the URL


def main(url: str, queue: str, action: str) -> None:
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        entity = kombu.Queue(queue, kombu.Exchange("news", "fanout"), auto_delete=True)

        def take(message: kombu.Message) -> None:
            print(f"took {message.payload}", flush=True)  # noqa: T201
            if action != "sit":
                getattr(message, action)()

        with kombu.Consumer(channel, [entity], on_message=take):
            print("ready", flush=True)  # noqa: T201
            while True:
                connection.drain_events()


if __name__ == "__main__":
    main(*sys.argv[1:])
