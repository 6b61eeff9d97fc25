"""A process that publishes at a rate, with every feature, until SIGTERM: URL RATE FILE.

`FILE` gets the names of the tasks that have to come to their end.
A rate of 0 is as many as there is work for: never more than `MOST_WAITING` plain tasks wait.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import redis

from tests.chaos.app import make_app
from tests.chaos.load.publishing import FeaturePublisher
from tests.chaos.load.queues import ARGUMENTS, PLAIN
from tests.chaos.soak.options import OPTIONS

#: Parts of the messages that are plain tasks.
PLAIN_PART = 0.7
#: Plain tasks that wait, at most, and messages between two looks at that.
MOST_WAITING, LOOK = 500, 50


class SoakPublisher(FeaturePublisher):
    """Sends mostly plain tasks, and the others with a feature each."""

    dedup_ttl_ms = 10_000

    def send_one(self) -> list[str]:
        """Publish a message, and return the names of the tasks that come of it for certain."""
        if self._random.random() < PLAIN_PART:
            name = f"{self._prefix}{self.sent}"
            self.sent += 1
            self._task(name, PLAIN)
            return [name]
        self._send()
        names = self.names()
        self.confirmed.clear()
        return names


def main(url: str, rate: float, path: Path) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    app = make_app(url, broker_transport_options=OPTIONS, queues=ARGUMENTS, configured={"event_log": True})
    publisher = SoakPublisher(app, f"{path.name}-", length=lambda _: 0.0)
    with path.open("w") as file, redis.Redis.from_url(url.replace("redisplus://", "redis://")) as client:
        due = time.monotonic()
        while not stopping.is_set():
            file.writelines(f"{name}\n" for name in publisher.send_one())
            if publisher.sent % LOOK == 0:
                while client.zcard(f"queue:{{{PLAIN}}}") > MOST_WAITING and not stopping.wait(0.01):
                    pass
            due = max(due + 1 / rate, time.monotonic() - 1) if rate else 0.0
            stopping.wait(max(0.0, due - time.monotonic()))
    app.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
