"""Workers that are asked to end while they are busy: nothing is lost, nothing is run twice (issue B, Shows 2)."""

import random
import time

import pytest

from tests.chaos.crew import Member
from tests.chaos.publishers import Publisher
from tests.chaos.state import check_invariants, empty, leftovers, places
from tests.support.judge.executions import Judgement, Verdict, count
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

QUEUE = "celery"
#: Long enough that nothing comes back for want of heartbeats: what a shutdown forgets stays away.
VISIBILITY_TIMEOUT_S = 300
CONCURRENCY = 2
BACKLOG = 50


def length(chooser):
    return chooser.choice([0, 0, 0.002, 0.02, 0.2])


@pytest.mark.judged(acks=0, strict=True)
@pytest.mark.parametrize("pool", ["solo", "threads", "prefork"])
def test_a_warm_shutdown_under_load_loses_and_repeats_nothing(
    *, pool, full, own_server, ledger, chaos_app, chaos_worker, figures
):
    rounds = 20 if full else 2
    app = chaos_app(own_server.url(), visibility_timeout=VISIBILITY_TIMEOUT_S)
    publisher = Publisher(
        app, "t", length=length, delayed=0.1, enough=lambda: publisher.sent - len(ledger.counted("end")) > BACKLOG
    )
    publisher.start()
    lives, took_s = [], []
    with Proxy(lambda: own_server.port) as proxy, own_server.client() as client:
        worker = chaos_worker(
            proxy.url(),
            visibility_timeout=VISIBILITY_TIMEOUT_S,
            pool=pool,
            concurrency=CONCURRENCY,
            config={"task_acks_late": True},
        )
        member = Member(worker, proxy, lives)
        for _ in range(rounds):
            done = len(ledger.ended())
            member.start()
            wait_until(lambda done=done: len(ledger.ended()) > done + random.randint(20, 200), 30, worker.tail)
            began = time.monotonic()
            assert member.stop() == 0
            took_s.append(time.monotonic() - began)
            assert places(client, QUEUE)["messages_index"] == 0, worker.tail(60)
        publisher.finish()
        names = set(publisher.names())
        member.start()
        wait_until(lambda: names <= set(ledger.ended()) and empty(client, QUEUE), 30, worker.tail)
        worker.wait_until_ready()
        assert member.stop() == 0
        check_invariants(client)
        assert leftovers(client) == []
    verdicts = count(Judgement(lives, acks=0).repeats(ledger.read()))
    figures(
        f"{rounds} warm shutdowns, {len(names)} tasks: lost {len(names - set(ledger.ended()))}, repeats "
        f"{sum(verdicts.values())}, of them results left unread in the pipe (prefork) {verdicts[Verdict.UNREAD_RESULT]}; "
        f"{min(took_s):.1f} to {max(took_s):.1f} s each"
    )
    assert {verdict for verdict, number in verdicts.items() if number} <= {Verdict.UNREAD_RESULT}
