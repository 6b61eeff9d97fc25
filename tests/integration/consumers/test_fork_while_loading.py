"""A process may fork while one of its threads loads what a first consumer needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import importlib.abc, os, signal, sys, threading, time
import kombu, celery_redis_plus

url, slow = sys.argv[1:]
begun = threading.Event()

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == slow and not begun.is_set():
            begun.set()
            # The other thread forks meanwhile.
            time.sleep(0.5)

def consume():
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        kombu.Queue("q")(channel).declare()
        channel.basic_consume("q", callback=print)
        channel.basic_get("q")

sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=consume)
thread.start()
assert begun.wait(30)
pid = os.fork()
if not pid:
    signal.alarm(20)
    consume()
    os._exit(0)
status = os.waitpid(pid, 0)[1]
thread.join(30)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "module", ["consumer.delivery_loop", "consumer.channel_consumers", "maintenance.service", "transport.qos"]
)
def test_the_child_can_consume(module, broker_url):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, broker_url, f"celery_redis_plus.{module}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
