"""The commands that run for long outlive a failover, with one line at the loss and one at the return."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from urllib.request import urlopen

import kombu
import pytest

from tests.support.inbox import declare, publish
from tests.support.waiting import wait_until

PROGRAM = [sys.executable, "-m", "celery_redis_plus"]
#: What each says of the loss and of the return.
LINES = {
    "watch": ("it tries again", "the broker answers again"),
    "tail": ("it tries again", "the broker answers again"),
    "exporter": ("the broker cannot be asked", "the broker is asked for its metrics again"),
    "web": ("the broker cannot be asked", "the broker answers again"),
}


class Tool:
    """A command that runs, and what it has printed so far."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.out: list[str] = []
        self.err: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(stream, into), daemon=True)
            for stream, into in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream, into):
        for line in stream:
            into.append(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        for thread in self._threads:
            thread.join(30)
        self.process.stdout.close()
        self.process.stderr.close()

    def url(self):
        return wait_until(lambda: next(iter(re.findall(r"http://[^/\s]+", "".join(self.err))), None))


def add(deployment, queue):
    """Declare a queue with an event log, with a message."""
    with kombu.Connection(deployment.url(), transport_options={"event_log": True}) as connection:
        declare(connection.default_channel, queue)
        publish(connection.default_channel, queue, "x")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["crash", pytest.param("failover", marks=pytest.mark.weekly)])
def test_tools_outlive_a_failover_with_a_line_at_the_loss_and_one_at_the_return(deployment, how):
    with deployment.client() as client:
        client.flushall()
    add(deployment, "before")
    deployment.wait_until_whole()
    url = ["--broker", deployment.url()]
    commands = {
        "watch": ["queues", "--watch", "--json", "--interval", "0.1", *url],
        "tail": ["events", "tail", "--json", *url],
        "exporter": ["exporter", "--port", "0", *url],
        "web": ["web", "--port", "0", *url],
    }
    with ExitStack() as stack:
        tools = {name: stack.enter_context(Tool(*arguments)) for name, arguments in commands.items()}

        def scraped():
            with urlopen(f"{tools['exporter'].url()}/metrics", timeout=30) as reply:
                return reply.read().decode()

        assert "celery_redis_plus_up 1.0" in scraped()
        for name in ("watch", "tail"):
            wait_until(lambda name=name: tools[name].out)
        tools["web"].url()
        getattr(deployment, how)()
        wait_until(lambda: "celery_redis_plus_up 1.0" in scraped(), timeout_s=60)
        add(deployment, "after")
        wait_until(lambda: 'queue="after"' in scraped(), timeout_s=60)
        for name in ("watch", "tail"):
            wait_until(lambda name=name: any(json.loads(line)["queue"] == "after" for line in tools[name].out), timeout_s=60)
        assert {name: tool.process.poll() for name, tool in tools.items()} == dict.fromkeys(tools)
    for name, (loss, back) in LINES.items():
        said = "".join(tools[name].err)
        # A failover on command may be over before the next look.
        assert said.count(loss) == said.count(back), f"{name}: {said}"
        assert said.count(loss) <= 1, f"{name}: {said}"
    if how == "crash":
        assert sum("".join(tools[name].err).count(LINES[name][0]) for name in ("watch", "tail")) == 2
