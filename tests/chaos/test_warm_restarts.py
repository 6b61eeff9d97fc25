"""Workers that are restarted warmly with a prefetched message in hand (issue A, Shows 9)."""

import signal

import pytest

from tests.chaos.ledger import repeats
from tests.chaos.state import check_invariants, empty, places
from tests.support.waiting import wait_until

QUEUE = "celery"
VISIBILITY_TIMEOUT_S = 300
HELD = [f"held{number}" for number in range(5)]


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_warm_restarts_leave_prefetched_messages_where_they_were(
    *, pool, full, own_server, ledger, tmp_path, chaos_app, chaos_worker, figures
):
    restarts = 100 if full else 2
    url = own_server.url()
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S)
    worker = chaos_worker(
        url,
        visibility_timeout=VISIBILITY_TIMEOUT_S,
        pool=pool,
        concurrency=1,
        config={"worker_prefetch_multiplier": 3},
    )
    with own_server.client() as client:

        def queued():
            return client.zrange(f"queue:{{{QUEUE}}}", 0, -1, withscores=True)

        def in_hand():
            return [tag for tag in tags if client.zscore(f"messages_index:{{{QUEUE}}}", tag) is not None]

        for name in HELD:
            app.send_task("chaos.run", [name])
        in_place = queued()
        tags = [tag for tag, _ in in_place]
        assert len(tags) == len(HELD)
        claims = 0
        for number in range(restarts):
            release = tmp_path / f"release{number}"
            app.send_task("chaos.until", [f"busy{number}", str(release)], priority=9)
            worker.start(wait=False)
            # It works on one, and has at least two more in hand, which nobody has begun.
            wait_until(
                lambda number=number: ledger.started()[f"busy{number}"] and len(in_hand()) >= 2,
                30,
                lambda: f"{places(client, QUEUE)} {worker.tail()}",
            )
            claims += len(in_hand())
            worker.signal(signal.SIGTERM)
            wait_until(lambda number=number: worker.log().count("Warm shutdown") == number + 1, 10, worker.tail)
            release.touch()
            assert worker.wait(40) == 0
            assert queued() == in_place
            for tag in tags:
                fields = client.hkeys(f"message:{{{QUEUE}}}:".encode() + tag)
                assert b"failed" not in fields
                assert b"owner" not in fields
        worker.start()
        wait_until(lambda: empty(client, QUEUE), 30, worker.tail)
        assert worker.stop() == 0
        check_invariants(client)
    assert set(ledger.ended()) == {*HELD, *(f"busy{number}" for number in range(restarts))}
    figures(
        f"{restarts} warm restarts with messages in hand ({claims} claims): all back in place, failures 0, "
        f"repeats {repeats(ledger.started())}, lost 0"
    )
    assert repeats(ledger.started()) == 0
    held_order = [entry.task for entry in ledger.read() if entry.task in HELD and entry.event == "start"]
    assert held_order == HELD


def test_threads_run_what_they_have_in_hand_before_they_end(
    *, full, own_server, ledger, tmp_path, chaos_app, chaos_worker, figures
):
    """Celery's threads pool ends only when its executor has run all it was given: then nothing is left to give back."""
    restarts, tasks_a_round = (30 if full else 2), 6
    url = own_server.url()
    app = chaos_app(url, visibility_timeout=VISIBILITY_TIMEOUT_S)
    worker = chaos_worker(url, visibility_timeout=VISIBILITY_TIMEOUT_S, pool="threads", concurrency=1)
    sent = 0
    with own_server.client() as client:
        for number in range(restarts):
            release = tmp_path / f"release{number}"
            app.send_task("chaos.until", [f"busy{number}", str(release)], priority=9)
            for _ in range(tasks_a_round):
                app.send_task("chaos.run", [f"t{sent}"])
                sent += 1
            worker.start(wait=False)
            wait_until(
                lambda number=number: ledger.started()[f"busy{number}"] and places(client, QUEUE)["messages_index"] >= 2,
                30,
                worker.tail,
            )
            worker.signal(signal.SIGTERM)
            wait_until(lambda number=number: worker.log().count("Warm shutdown") == number + 1, 10, worker.tail)
            release.touch()
            assert worker.wait(40) == 0
            assert places(client, QUEUE)["messages_index"] == 0
        worker.start()
        wait_until(lambda: empty(client, QUEUE), 30, worker.tail)
        assert worker.stop() == 0
        check_invariants(client)
    lost = sent + restarts - len(ledger.ended())
    figures(f"{restarts} warm restarts, {sent} tasks: repeats {repeats(ledger.started())}, lost {lost}")
    assert lost == 0
    assert repeats(ledger.started()) == 0
