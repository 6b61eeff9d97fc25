"""A process that ends in order without closing its connections gives back what it holds, at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.inbox import declare, publish
from tests.support.proxy import Proxy

CONSUMER = """
import os, sys, threading, time
import celery_redis_plus
from kombu import Connection, Consumer, Queue

url, ending = sys.argv[1:]
connection = Connection(url, transport_options={"socket_timeout": 30, "socket_connect_timeout": 30})
taken = []
consumer = Consumer(connection, [Queue("q")], on_message=taken.append, prefetch_count=4)
consumer.consume()
while len(taken) < 3:
    connection.drain_events(timeout=5)
taken[0].ack()
print("took", flush=True)
sys.stdin.readline()
began = time.monotonic()
if ending == "fork":
    # A child that exits like a program has nothing of this process to give back.
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    os.waitpid(pid, 0)
    print("forked", flush=True)
    sys.stdin.readline()
if ending == "error":
    raise RuntimeError("the program fails")
if ending == "away":
    import atexit
    # Registered last, called first.
    atexit.register(lambda: setattr(sys, "exit_began", time.monotonic()))
"""
TIMED = """
import atexit, sys, time
atexit.register(lambda: print(time.monotonic() - sys.exit_began, flush=True))
"""


@pytest.fixture
def begin(channel, broker_url):
    """Start a program that takes three messages, acks the first, has a fourth in its buffer, and ends when told to."""
    started = []

    def start(ending="end", url=broker_url, program=CONSUMER):
        command = [sys.executable, "-c", program, url, ending]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        assert process.stdout.readline() == "took\n"
        return process

    declare(channel, "q")
    publish(channel, "q", *range(6))
    yield start
    for process in started:
        process.kill()
        process.communicate()


def left(channel):
    """The messages that come, with whether they came before."""
    found = []
    while (message := channel.basic_get("q", no_ack=True)) is not None:
        found.append((int(message.body), message.delivery_info["redelivered"]))
    return found


@pytest.mark.parametrize("ending", ["end", "error"])
def test_what_a_program_took_and_did_not_settle_comes_to_the_next_one_at_once_and_in_place(ending, begin, channel):
    program = begin(ending)
    _, errors = program.communicate("\n", timeout=60)
    assert left(channel) == [(1, True), (2, True), (3, False), (4, False), (5, False)]
    assert channel.consumer_session.consumers.list("q") == []
    assert errors.count("Traceback") == (ending == "error")


def test_a_forked_child_that_exits_gives_nothing_of_its_parent_back(begin, channel, redis_client):
    program = begin("fork")
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "forked\n"
    assert redis_client.zcard("messages_index:{q}") == 3
    program.communicate("\n", timeout=60)
    assert redis_client.zcard("messages_index:{q}") == 0


@pytest.mark.parametrize("weather", ["blackhole", "refuse"])
@pytest.mark.not_on("all", reason="a proxy leads to one server")
def test_a_server_that_is_away_holds_up_the_end_for_a_second_at_most(weather, begin, redis_client):
    with Proxy(lambda: redis_client.connection_pool.connection_kwargs["port"]) as proxy:
        program = begin("away", proxy.url(), TIMED + CONSUMER)
        getattr(proxy, weather)()
        took, errors = program.communicate("\n", timeout=60)
    assert program.returncode == 0
    assert float(took) < 1.5
    assert "come back after the visibility timeout" in errors


THREADED = """
import sys, threading
import celery_redis_plus
from kombu import Connection, Consumer, Queue

connection = Connection(sys.argv[1])
taken = []
def consume():
    with Consumer(connection, [Queue("q")], on_message=taken.append, prefetch_count=4):
        while True:
            try:
                connection.drain_events(timeout=1)
            except TimeoutError:
                pass
thread = threading.Thread(target=consume, daemon=True)
thread.start()
while len(taken) < 4:
    thread.join(0.01)
taken[0].ack()
print("took", flush=True)
sys.stdin.readline()
"""


def test_a_thread_that_still_consumes_claims_nothing_of_what_goes_back(begin, channel, redis_client):
    program = begin(program=THREADED)
    program.communicate("\n", timeout=60)
    assert program.returncode == 0
    assert redis_client.zcard("messages_index:{q}") == 0
    assert [body for body, _ in left(channel)] == [1, 2, 3, 4, 5]


def test_a_process_that_has_closed_its_connections_opens_none_at_its_end(broker_url, redis_client):
    program = f"""
import celery_redis_plus, kombu
with kombu.Connection({broker_url!r}) as connection:
    connection.default_channel.queue_declare("q")
"""
    before = redis_client.info("stats")["total_connections_received"]
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    assert redis_client.info("stats")["total_connections_received"] == before + 1
