"""A server that is unreachable for much longer than the visibility timeout, while tasks run (issue B, Shows 4)."""

import os
import time
from pathlib import Path

import pytest

from tests.chaos.ledger import repeats
from tests.chaos.state import check_invariants, empty, places
from tests.support.waiting import wait_until

QUEUE = "celery"
VISIBILITY_TIMEOUT_S = 3
RUNNING = 50
#: So many of them end during the outage: their acks wait for the server.
ENDING = 20


def cpu_s(pid):
    """The processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_running_tasks_run_once_although_the_server_was_away(
    *, pool, start_server, ledger, tmp_path, chaos_app, chaos_worker, figures
):
    server = start_server({"appendonly": "yes", "appendfsync": "always"})
    app = chaos_app(server.url(), visibility_timeout=VISIBILITY_TIMEOUT_S)
    during, after = tmp_path / "during", tmp_path / "after"
    holder, other = (
        chaos_worker(
            server.url(),
            visibility_timeout=VISIBILITY_TIMEOUT_S,
            pool=pool,
            concurrency=concurrency,
            config={"task_acks_late": True, "worker_prefetch_multiplier": 1},
        )
        for concurrency in (RUNNING, 2)
    )
    for number in range(RUNNING):
        app.send_task("chaos.until", [f"t{number}", str(during if number < ENDING else after)])
    holder.start(timeout_s=60)
    wait_until(lambda: len(ledger.started()) == RUNNING, 60, holder.tail)
    # Somebody who would take what looks forgotten.
    other.start()
    busy_s = [cpu_s(worker.pid) for worker in (holder, other)]
    server.stop()
    gone_at = time.monotonic()
    during.touch()
    wait_until(lambda: len(ledger.ended()) == ENDING, 30, holder.tail)
    wait_until(lambda: time.monotonic() - gone_at > 3 * VISIBILITY_TIMEOUT_S, 60)
    away_s = time.monotonic() - gone_at
    busy_s = [cpu_s(worker.pid) - before for worker, before in zip((holder, other), busy_s, strict=True)]
    server.start()
    with server.client() as client:
        wait_until(
            lambda: places(client, QUEUE) == {"queue": 0, "delayed": 0, "messages_index": RUNNING - ENDING, "dead": 0},
            30,
            lambda: f"{places(client, QUEUE)} {holder.tail()}",
        )
        # Longer than the deadlines that had passed: heartbeats keep what runs.
        back_at = time.monotonic()
        wait_until(lambda: time.monotonic() - back_at > 2 * VISIBILITY_TIMEOUT_S, 60)
        after.touch()
        wait_until(lambda: len(ledger.ended()) == RUNNING and empty(client, QUEUE), 30, holder.tail)
        assert holder.stop(60) == 0
        assert other.stop(60) == 0
        check_invariants(client)
    figures(
        f"{RUNNING} tasks ran, {ENDING} of them ended during an outage of {away_s:.1f} s with a visibility timeout of "
        f"{VISIBILITY_TIMEOUT_S} s: repeats {repeats(ledger.started())}; main processes busy for {max(busy_s):.2f} s"
    )
    assert repeats(ledger.started()) == 0
    # Processor time, which no load of the machine changes: nobody asks without a pause.
    assert max(busy_s) < away_s / 4
    for worker in (holder, other):
        # A line when the server goes and one when it is back, not one a try.
        assert worker.log().count("timers: the broker is unreachable") == 1
        assert worker.log().count("timers: the broker is reachable again") == 1
