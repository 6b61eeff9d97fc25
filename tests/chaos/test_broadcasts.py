"""Subscribers that are cut off and frozen while broadcasts go on (issue E, Shows 1)."""

import random
import signal
import subprocess
import sys
import time

import kombu

from tests.chaos.subscriber import EXCHANGE, NAME, READY
from tests.support.judge import records
from tests.support.judge.recorder import note
from tests.support.waiting import wait_until
from tests.support.workers import ROOT


def received(path):
    """(body, redelivered) of every delivery."""
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n") and line != READY]
    return [tuple(map(int, line.split())) for line in lines]


def subscribers_of(client, number):
    return [row["id"] for row in client.client_list() if row["name"] == f"{NAME}-{number}"]


def test_every_subscriber_gets_every_broadcast_in_order_whatever_happens_to_its_connections(
    *, full, own_server, tmp_path, figures
):
    count, total, cuts, frozen_s = (10, 20_000, 20, 20) if full else (4, 3_000, 5, 3)
    url = own_server.url()
    with kombu.Connection(url, transport_options={"stream_maxlen": 2 * total}) as connection, own_server.client() as client:
        channel = connection.channel()
        EXCHANGE(channel).declare()
        paths = [tmp_path / f"{number}" for number in range(count)]
        processes = [
            subprocess.Popen([sys.executable, "-m", "tests.chaos.subscriber", url, str(number), str(total), str(path)], cwd=ROOT)
            for number, path in enumerate(paths)
        ]
        try:
            wait_until(lambda: all(path.exists() and READY in path.read_bytes() for path in paths), 60)
            publish = kombu.Producer(channel, EXCHANGE).publish
            plan = sorted((random.randrange(total), number) for number in range(count) for _ in range(cuts))
            freeze_at, thaw_at, thawed = total // 3, None, False
            done_cuts = 0
            for number in range(total):
                publish(number)
                while plan and plan[0][0] <= number:
                    _, victim = plan.pop(0)
                    for connection_id in subscribers_of(client, victim):
                        done_cuts += client.client_kill_filter(_id=connection_id)
                if number == freeze_at:
                    note(records.SILENT, process=processes[0].pid)
                    processes[0].send_signal(signal.SIGSTOP)
                    thaw_at = time.monotonic() + frozen_s
                if thaw_at and not thawed and time.monotonic() >= thaw_at:
                    processes[0].send_signal(signal.SIGCONT)
                    note(records.HEARD, process=processes[0].pid)
                    thawed = True
            if not thawed:
                time.sleep(max(0.0, thaw_at - time.monotonic()))
                processes[0].send_signal(signal.SIGCONT)
            for process in processes:
                assert process.wait(150) == 0
            note(records.DRAINED, queue=EXCHANGE.name)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    duplicates = 0
    for path in paths:
        deliveries = received(path)
        fresh = [body for body, redelivered in deliveries if not redelivered]
        assert sorted({body for body, _ in deliveries}) == list(range(total))
        assert fresh == sorted(set(fresh)), "out of order, or a duplicate without a flag"
        duplicates += len(deliveries) - total
    figures(
        f"{count} subscribers, {total} broadcasts, {done_cuts} connections cut, one process stopped {frozen_s} s: all got all, "
        f"in order; {duplicates} duplicates, all flagged"
    )
