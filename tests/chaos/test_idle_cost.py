"""What looking for lost connections costs while nothing happens: commands a second, with and without."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.support.apps import JOURNAL_DB
from tests.support.consuming import consumers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.full_only, pytest.mark.judged(acks=0)]
#: Seconds until all idle, and seconds of the measurement.
SETTLED_S, MEASURED_S = 20, 60
#: Commands a second that the leader's looks may cost, all processes together. Without a grace there are heartbeats as well.
MOST_COMMANDS = 1.5
PROCESSES = "processes:{presence}"
#: Not of idle processes: the test's own, and what a script calls.
CALLS = ("evalsha", "eval", "client|list", "info", "ping", "get", "bzmpop", "client|id", "client|setname", "hello", "script|load")


def calls(client):
    found = client.info("commandstats")
    return Counter({name: found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in CALLS})


@pytest.mark.parametrize("processes", [2, 10])
def test_commands_of_idle_processes(processes, own_server, tmp_path, figures):
    rates = {}
    for grace_s in (5, 0):
        logs = tmp_path / str(grace_s)
        logs.mkdir()
        with (
            own_server.client(JOURNAL_DB) as journal,
            own_server.client() as client,
            consumers(own_server.url(), journal, logs) as crew,
        ):
            client.flushall()
            for number in range(processes):
                crew.start(f"c{number}", queue=f"q{number}", connection_lost_grace=grace_s)
            crew.wait(60)
            wait_until(lambda client=client: client.hlen(PROCESSES) == processes + 1, 30)
            time.sleep(SETTLED_S)
            before, began = calls(client), time.monotonic()
            time.sleep(MEASURED_S)
            took_s = time.monotonic() - began
            rates[grace_s] = {name: number / took_s for name, number in (calls(client) - before).items()}
    more = sum(rates[5].values()) - sum(rates[0].values())
    told = {grace_s: {name: round(rate, 2) for name, rate in found.items()} for grace_s, found in rates.items()}
    figures(
        f"{processes} idle processes: {more:.2f} commands a second more, {more / processes:.2f} a process; "
        f"with {told[5]}, without {told[0]}"
    )
    assert more <= MOST_COMMANDS
