"""The consumer whose turn it is freezes, and with it a wakeup and perhaps the sweeper (issue A, Shows 7)."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from kombu import Connection, Queue

import celery_redis_plus  # noqa: F401 - makes kombu know the scheme
from tests.chaos.state import places
from tests.support.judge import records
from tests.support.judge.recorder import note
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

QUEUE = "frozen"
HOUR_MS = 3_600_000


@pytest.fixture
def start_consumer(own_server, ledger):
    processes = []

    def start(name):
        with (ledger.directory.parent / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.consumer", own_server.url(), QUEUE, name],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def blocked_ids(client, name):
    """The server's ids of the blocked calls on the wakeups that the consumer `name` has out."""
    return {
        row["id"]
        for row in client.client_list()
        if row["name"] == name and row["cmd"].split("|")[0] == "bzmpop" and "b" in row["flags"]
    }


def swept(client):
    """The record of the queue's sweeper: its name and the time of its last pass."""
    return client.hmget(f"meta:{{{QUEUE}}}", "sweeper", "swept")


@pytest.mark.parametrize("has_delayed", [False, True], ids=["idle", "with a sweeper's lease"])
def test_the_other_consumer_gets_what_a_frozen_one_was_woken_for(
    *, has_delayed, full, own_server, start_consumer, ledger, figures
):
    rounds = 10 if full else 1
    waits = []
    with ExitStack() as stack:
        client = stack.enter_context(own_server.client())
        connection = stack.enter_context(Connection(own_server.url()))
        producer = connection.Producer()
        queue = Queue(QUEUE)
        if has_delayed:
            producer.publish("later", routing_key=QUEUE, declare=[queue], headers={"x-delay": HOUR_MS})
        for number in range(rounds):
            # The first one waits longest, and holds the sweeper's lease where there is one.
            client.hdel(f"meta:{{{QUEUE}}}", "sweeper")
            first = start_consumer(f"first{number}")
            wait_until(lambda number=number: len(blocked_ids(client, f"first{number}")) == 2, 10)
            second = start_consumer(f"second{number}")
            wait_until(lambda number=number: len(blocked_ids(client, f"second{number}")) == 2, 10)
            if has_delayed:
                before = swept(client)
                wait_until(lambda before=before: swept(client) != before, 15)
            note(records.SILENT, process=first.pid)
            os.kill(first.pid, signal.SIGSTOP)
            at = time.time()
            producer.publish(f"m{number}", routing_key=QUEUE, declare=[queue])
            wait_until(lambda number=number: ledger.ended()[f"m{number}"], 15)
            got = next(entry for entry in ledger.read() if entry.task == f"m{number}")
            assert got.pid == second.pid, "the frozen one did not wait longest"
            waits.append(got.time - at)
            os.kill(first.pid, signal.SIGCONT)
            note(records.HEARD, process=first.pid)
            note(records.KILLED, process=second.pid)
            second.kill()
            second.wait()
            # The thawed one looks at the queue whose wakeup it took, finds nothing, and goes on consuming.
            producer.publish(f"after{number}", routing_key=QUEUE, declare=[queue])
            wait_until(lambda number=number: ledger.ended()[f"after{number}"], 15)
            assert ledger.started()[f"m{number}"] == 1
            first.kill()
            first.wait()
        assert places(client, QUEUE) == {"queue": 0, "delayed": has_delayed, "messages_index": 0, "dead": 0}
    figures(f"{rounds} rounds: the other one had it after {min(waits):.1f} to {max(waits):.1f} s")
    assert max(waits) < 5
