"""An idle process that is killed at its next delivery leaves nothing for longer than the grace; and what idle ones cost."""

from __future__ import annotations

import pytest

from celery_redis_plus import clock
from celery_redis_plus.maintenance.heartbeat import BEATS_A_SECOND, LONGEST_BEAT_S
from tests.integration.lost.conftest import GRACE_S, KEYS
from tests.support.inbox import declare, publish
from tests.support.waiting import wait_until

#: Commands a second of a leader, of one without followers, and of each follower where there are few.
OF_LEADER, ALONE, OF_FOLLOWER = 3, 1, 0.9


def live(processes, time, client, seconds):
    """Let processes do what is due for so long; return how many commands they have sent."""
    client.config_resetstat()
    for _ in range(round(seconds / 0.1)):
        time.advance(0.1)
        for process in processes:
            if process.task.next_run_at <= clock.now_s():
                process.task.run()
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "client|list", "info"))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_idle_processes_send(count, start, time, redis_client):
    processes = [start(f"p{number}") for number in range(count)]
    live(processes, time, redis_client, 3)
    of_leader = ALONE if count == 1 else OF_LEADER
    assert live(processes, time, redis_client, 30) <= 30 * (of_leader + OF_FOLLOWER * (count - 1)) + count


def test_many_processes_send_heartbeats_more_rarely(start, time, redis_client):
    """All of them together often enough to notice soon that there is no leader."""
    leader, follower = start("leader"), start("follower")

    def rest_s():
        leader.run_now()
        # Not later than the heartbeat before has said.
        for _ in range(2):
            follower.run_now()
        return follower.heartbeat.next_run_at - clock.now_s()

    for number in range(3 * BEATS_A_SECOND):
        leader.beat(f"p{number}", '{"of": "a later release"}')
    assert 2 < rest_s() <= 3.1
    for number in range(3 * BEATS_A_SECOND, 20 * BEATS_A_SECOND):
        leader.beat(f"p{number}", '{"of": "a later release"}')
    assert 0.7 * LONGEST_BEAT_S < rest_s() <= LONGEST_BEAT_S


@pytest.mark.slow
def test_an_idle_process_that_dies_at_its_next_delivery_leaves_nothing_for_longer_than_the_grace(
    connect, own_server, crew, client
):
    """As by a task that ends the process of a solo worker."""
    options = {"connection_lost_grace": GRACE_S}
    channel = connect(own_server.url()).channel()
    declare(channel, "q")
    crew.start("leader", queue="other", **options)
    crew.start("dead", prefetch=20, dies=True, **options)
    crew.wait()
    wait_until(lambda: client.zcard(KEYS.processes[1]) == 2)
    publish(channel, "q", 1)
    wait_until(lambda: client.zcard("messages_index:{q}") == 1, interval_s=0.005)
    wait_until(lambda: client.zcard("queue:{q}") == 1, GRACE_S + 2)
