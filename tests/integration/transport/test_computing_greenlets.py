"""A greenlet that computes keeps every other one from running, the one for heartbeats too: the log says so."""

import os
import subprocess
import sys

import pytest

from tests.support.workers import ROOT

pytestmark = pytest.mark.server

PATCH = {
    "gevent": "import gevent.monkey; gevent.monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
#: Keeps the thread for longer than the visibility timeout, and once more, with a message in its hands. `compute` is the sleep
#: from before the patch: it lets no greenlet run, and leaves the core to other tests.
PROGRAM = """
import logging, sys, time
import celery_redis_plus
from kombu import Connection
logging.basicConfig(level=logging.WARNING)
with Connection(sys.argv[1], transport_options={"visibility_timeout": 3}) as connection:
    queue = connection.SimpleQueue("computed")
    queue.put("one")
    message = queue.get(timeout=5)
    for computes_s in (3.2, 1.5):
        compute(computes_s)
        time.sleep(0.5)
    message.ack()
    queue.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["gevent", pytest.param("eventlet", marks=pytest.mark.weekly)])
def test_late_heartbeats_under_greenlets_are_explained_once(library, broker_url):
    pytest.importorskip(library)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"from time import sleep as compute\n{PATCH[library]}\n{PROGRAM}", broker_url],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("makes the thread for heartbeats a greenlet") == 1, done.stderr
    assert "make visibility_timeout (3 s) longer than the longest computation" in done.stderr
