"""A process that publishes tasks until it is killed: URL NAME. Prints a line when the first one is confirmed."""

from __future__ import annotations

import itertools
import sys
import time

from tests.chaos.app import make_app
from tests.chaos.publishers import RETRY
from tests.support.judge.recorder import install


def main(url: str, name: str) -> None:
    install()
    app = make_app(url, broker_transport_options={"client_name": "chaos-test"})
    for number in itertools.count():
        app.send_task("chaos.run", [f"{name}{number}", 0.001], retry=True, retry_policy=RETRY)
        if number == 0:
            print("published", flush=True)  # noqa: T201
        # A tenth of what the workers do.
        time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
