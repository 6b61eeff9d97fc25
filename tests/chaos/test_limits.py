"""Eight publishers against every limit, and against a slow consumer."""

from __future__ import annotations

import os
import signal
import time

import kombu
import pytest

from tests.support import accounting
from tests.support.publishers import PublishingProcess
from tests.support.waiting import wait_until

LIMIT = 1000
#: What the slow consumer does in a second.
RATE = 200


@pytest.mark.parametrize("counted", ["x-max-length", "x-max-pending"])
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx", "block"])
def test_eight_processes_never_exceed_a_limit(redis_client, broker_url, overflow, counted, full, figures):
    limit, each = (LIMIT, 1_200) if full else (100, 500)
    arguments = {counted: limit, "x-overflow": overflow}
    account = accounting.run(redis_client, broker_url, "q", arguments, publishers=8, each=each, consume=True)
    figures(f"{overflow} at {counted} {limit}: {account}")
    accounting.check(account, overflow, limit, counted)


def test_blocked_publishers_settle_at_the_consumers_rate_and_burn_nothing(redis_client, broker_url, full, figures):
    """A consumer of 200 messages a second, four publishers as fast as they can; one of them is killed while it waits."""
    seconds = 30 if full else 6
    limit = 50
    arguments = {"x-max-length": limit, "x-overflow": "block"}
    account = accounting.Account()
    queue = kombu.Queue("q", durable=True, queue_arguments=arguments)
    taken: list[str] = []
    with kombu.Connection(broker_url) as connection, accounting.Sampler(redis_client, "q", account):
        channel = connection.channel()
        queue(channel).declare()
        processes = [PublishingProcess(broker_url, "q", 1_000_000, f"p{number}") for number in range(4)]
        try:
            wait_until(lambda: redis_client.zcard("waiting_publishers:{q}") == 4, 30, "all four wait")
            cpu, begin = cpu_s(processes), time.monotonic()
            first = int(redis_client.hget("meta:{q}", "published"))
            killed_at = begin + seconds / 2
            due = begin
            while time.monotonic() < begin + seconds:
                if killed_at and time.monotonic() > killed_at:
                    os.kill(processes[0].pid, signal.SIGKILL)
                    killed_at = 0.0
                    cpu -= cpu_s(processes[:1])
                message = channel.basic_get("q")
                if message is not None:
                    taken.append(message.payload)
                    message.ack()
                due += 1 / RATE
                time.sleep(max(0.0, due - time.monotonic()))
            elapsed = time.monotonic() - begin
            published = int(redis_client.hget("meta:{q}", "published")) - first
            working = cpu_s(processes[1:]) - cpu
            # Now nobody consumes: what does it cost to wait?
            cpu, begin = cpu_s(processes[1:]), time.monotonic()
            time.sleep(seconds / 3)
            share = (cpu_s(processes[1:]) - cpu) / 3 / (time.monotonic() - begin)
        finally:
            for process in processes:
                process.kill()
        while (message := channel.basic_get("q")) is not None:
            taken.append(message.payload)
            message.ack()
    figures(
        f"published {published / elapsed:.0f}/s at {len(taken) / elapsed:.0f}/s consumed, {working / 3 / elapsed:.1%} CPU each; "
        f"waiting for nothing {share:.2%}; {account.most_waiting} of {limit} at most"
    )
    assert account.most_waiting <= limit
    assert abs(published - (len(taken) - limit)) <= limit, "the publishers did not keep to the consumer's rate"
    assert share < 0.02
    assert len(taken) == len(set(taken)) == int(redis_client.hget("meta:{q}", "published"))
    # Each publisher's messages come in its order, without a hole: also the killed one's.
    for number in range(4):
        mine = [int(body.rpartition("-")[2]) for body in taken if body.startswith(f"p{number}-")]
        assert mine == list(range(len(mine))), f"publisher {number}: {mine[:20]}"


def cpu_s(processes: list[PublishingProcess]) -> float:
    """Return the CPU time that processes have used, in seconds."""
    ticks = 0
    for process in processes:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as stat:  # noqa: PTH123 - a file of the kernel
            ticks += sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")
