"""Who leads, and what the leader takes for the loss of a process; with a clock of the test's own."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.processes import LOST, ProcessRecord
from celery_redis_plus.maintenance.leader import LEAST_LOOK_S
from celery_redis_plus.maintenance.lost_processes import LOOK_S, STALE_S
from tests.integration.lost.conftest import KEYS, Process

REGISTRY = KEYS.processes[0]
GRACE_S = 5.0
#: No connection has this id.
NOBODY = 10**9


@pytest.fixture
def leader(start):
    return start("leader")


@pytest.fixture
def ghost(leader, redis_client):
    """The record of a process that has no connection."""
    run = redis_client.info("server")["run_id"]
    record = ProcessRecord(run, (NOBODY,), GRACE_S, ("ghost",), ("q",), "host", 1)
    leader.beat("ghost", record.encode())
    leader.run_now()
    return record


def look(leader, time, seconds=LOOK_S, times=1):
    for _ in range(times):
        time.advance(seconds)
        leader.run_now()


def is_lost(client):
    record = client.hget(REGISTRY, "ghost")
    return record is None or record.startswith(LOST.encode())


def test_a_process_without_a_connection_is_lost_after_the_grace(time, leader, ghost, redis_client):
    look(leader, time, times=4)
    assert not is_lost(redis_client)
    look(leader, time)
    assert sorted(redis_client.hkeys(REGISTRY)) == [b"leader", b"version"]


@pytest.mark.parametrize("left", range(3))
def test_a_process_with_one_connection_left_is_not_lost(time, leader, ghost, redis_client, left):
    ids = [NOBODY, NOBODY + 1, NOBODY + 2]
    ids[left] = redis_client.client_id()
    leader.beat("ghost", replace(ghost, ids=tuple(ids)).encode())
    look(leader, time, times=20)
    assert not is_lost(redis_client)


def test_time_in_which_nobody_looked_begins_all_absences_anew(time, leader, ghost, redis_client):
    look(leader, time, times=4)
    look(leader, time, seconds=10)
    look(leader, time, times=4)
    assert not is_lost(redis_client)
    look(leader, time)
    assert is_lost(redis_client)


def test_a_pause_within_a_look_begins_all_absences_anew(time, leader, ghost, redis_client, monkeypatch):
    """The server stops after it has read the question, and workers that timed out meanwhile come back after the answer."""
    look(leader, time, times=4)
    ask = leader.registry.connected

    def paused(ids):
        time.advance(10)
        return ask(ids)

    with monkeypatch.context() as patch:
        patch.setattr(leader.registry, "connected", paused)
        look(leader, time)
    look(leader, time, times=4)
    assert not is_lost(redis_client)


def test_a_pause_for_writes_begins_all_absences_anew(time, leader, ghost, redis_client, monkeypatch):
    """CLIENT PAUSE WRITE: CLIENT LIST answers, and nobody can store new ids. A leader that misses somebody writes as well."""
    beat = leader.registry.beat

    def paused(*args, **options):
        time.advance(10)
        return beat(*args, **options)

    look(leader, time, times=4)
    with monkeypatch.context() as patch:
        patch.setattr(leader.registry, "beat", paused)
        look(leader, time)
    look(leader, time, times=4)
    assert not is_lost(redis_client)


def test_slow_looks_count_less_than_they_take(time, leader, ghost, redis_client):
    look(leader, time, seconds=2.9, times=3)
    assert not is_lost(redis_client)
    look(leader, time, seconds=2.9)
    assert is_lost(redis_client)


def test_a_process_that_reconnects_within_the_grace_is_not_lost(time, leader, ghost, redis_client):
    for number in range(3):
        look(leader, time, times=4)
        # It had a connection in between that is gone again.
        record = replace(ghost, ids=(NOBODY + number + 1,))
        leader.beat("ghost", record.encode())
    look(leader, time, times=4)
    assert not is_lost(redis_client)


def test_a_process_that_comes_back_at_the_last_moment_is_not_lost(time, leader, ghost, redis_client, monkeypatch):
    look(leader, time, times=4)
    lose = leader.registry.replace
    record = replace(ghost, ids=(redis_client.client_id(),)).encode()

    def too_late(*args, **options):
        leader.beat("ghost", record)
        return lose(*args, **options)

    monkeypatch.setattr(leader.registry, "replace", too_late)
    look(leader, time, times=5)
    assert redis_client.hget(REGISTRY, "ghost") == record.encode()


def test_a_record_of_another_run_of_the_server_says_nothing_and_goes_after_a_while(time, leader, ghost, redis_client):
    leader.beat("ghost", replace(ghost, run="f" * 40).encode())
    look(leader, time, times=20)
    assert not is_lost(redis_client)
    look(leader, time, seconds=STALE_S + 1)
    assert not is_lost(redis_client)
    set_silent(redis_client, "ghost", STALE_S)
    look(leader, time, seconds=STALE_S + 1)
    assert redis_client.hget(REGISTRY, "ghost") is None


def test_a_record_that_a_later_version_wrote_is_left_alone(time, leader, ghost, redis_client):
    leader.beat("ghost", '{"other":1}')
    look(leader, time, times=20)
    assert redis_client.hget(REGISTRY, "ghost") == b'{"other":1}'


def test_what_a_dead_leader_has_left_is_finished_by_the_next_one(time, leader, ghost, redis_client):
    leader.beat("ghost", LOST + ghost.encode())
    assert is_lost(redis_client)
    look(leader, time)
    assert redis_client.hget(REGISTRY, "ghost") is None


def test_processes_with_the_same_client_id_are_not_judged(time, leader, ghost, redis_client, caplog):
    """A proxy shares its connections: the end of one says nothing."""
    for name in ("a", "b"):
        leader.beat(name, replace(ghost, ids=(7,)).encode())
    with caplog.at_level(logging.WARNING):
        look(leader, time, times=20)
    assert not is_lost(redis_client)
    assert [record.getMessage().partition("(proc")[2] for record in caplog.records] == [
        "esses have the same client ids, as behind a proxy that shares connections)"
    ]
    # Nor can others tell from its connections whether this process lives.
    assert leader.record(redis_client).ids == ()
    assert leader.leadership.leads


def test_a_server_that_does_not_list_the_leader_itself_is_not_believed(time, leader, ghost, redis_client, monkeypatch, caplog):
    monkeypatch.setattr(leader.registry, "connected", lambda ids: set())
    with caplog.at_level(logging.WARNING):
        look(leader, time, times=20)
    assert not is_lost(redis_client)
    assert len(caplog.records) == 1


def test_a_process_whose_connections_share_an_id_names_none(broker_url, redis_client, caplog):
    process = Process("shared", broker_url)
    process.timers.connect()
    process.commands.connect()
    process.timers.client_id = process.commands.client_id
    with caplog.at_level(logging.WARNING):
        process.task.run()
    assert "one client id" in caplog.text
    assert process.record(redis_client).ids == ()
    process.close()


def test_a_process_that_cannot_be_judged_stays_while_it_sends_heartbeats(time, leader, start, redis_client):
    other = start("other", connection_lost_grace=0)
    look(leader, time, times=2)
    look(leader, time, seconds=STALE_S + 1)
    assert other.record(redis_client).ids == ()
    set_silent(redis_client, "other", STALE_S)
    look(leader, time, seconds=STALE_S + 1)
    assert redis_client.hget(REGISTRY, "other") is None


def test_a_flushed_database_gets_the_record_again(time, leader, redis_client):
    stored = redis_client.hget(REGISTRY, "leader")
    redis_client.flushdb()
    look(leader, time, seconds=11)
    assert redis_client.hget(REGISTRY, "leader") == stored


def test_a_process_that_consumes_nothing_more_leaves_no_key(leader, redis_client):
    leader.consumed.remove("q", "session of leader.1")
    assert leader.task.next_run_at == 0
    leader.task.run()
    assert not redis_client.exists(*KEYS.processes[:2])


def leader_of(client):
    return client.hmget(KEYS.processes[2], "process", "epoch")


def lease_s(client):
    seconds, microseconds = client.time()
    return int(client.hget(KEYS.processes[2], "until")) / 1000 - seconds - microseconds / 1e6


def end_lease(client):
    client.hset(KEYS.processes[2], "until", 1)


def test_the_first_process_leads_and_the_next_one_when_its_lease_ends(start, redis_client):
    first, second = start("first"), start("second")
    second.run_now()
    assert (first.leadership.leads, second.leadership.leads) == (True, False)
    assert leader_of(redis_client)[0] == b"first"
    epoch = first.leadership.epoch
    assert 1.0 < lease_s(redis_client) <= 1.5
    # It is stuck, or frozen: its connections are there.
    end_lease(redis_client)
    second.run_now()
    assert leader_of(redis_client) == [b"second", b"%d" % (epoch + 1)]
    first.run_now()
    assert (first.leadership.leads, second.leadership.leads) == (False, True)


def test_a_leader_that_sent_no_heartbeat_for_its_lease_does_nothing_more(start, time):
    leader = start("leader")
    time.advance(1.4)
    assert leader.leadership.leads
    time.advance(0.2)
    assert not leader.leadership.leads
    assert leader.task.next_run_at == leader.heartbeat.next_run_at


def test_what_an_earlier_leader_still_does_is_refused(time, leader, ghost, start, redis_client):
    look(leader, time, times=4)
    end_lease(redis_client)
    start("next").run_now()
    assert not leader.heartbeat.lose("ghost", ghost.encode(), LOST + ghost.encode())
    assert not is_lost(redis_client)


def test_a_leader_that_consumes_nothing_more_leaves_its_place_at_once(start, redis_client):
    first, second = start("first"), start("second")
    epoch = first.leadership.epoch
    first.consumed.remove("q", "session of first.1")
    first.task.run()
    second.run_now()
    assert leader_of(redis_client) == [b"second", b"%d" % (epoch + 1)]


def test_a_process_that_may_ask_for_connections_leads_rather_than_one_that_may_not(start, redis_client):
    first = start("first")
    first.heartbeat.cannot_ask("CLIENT LIST is refused")
    first.task.run()
    assert leader_of(redis_client)[0] == b"first"
    assert start("second").leadership.leads
    first.run_now()
    assert leader_of(redis_client)[0] == b"second"


def test_a_leader_that_is_alone_sends_half_as_many_heartbeats(start, redis_client):
    leader = start("leader")
    leader.run_now()
    assert 2.5 < lease_s(redis_client) <= 3
    start("follower")
    leader.run_now()
    leader.run_now()
    assert 1.0 < lease_s(redis_client) <= 1.5


def test_a_step_of_the_servers_clock_back_keeps_no_leader_for_longer(start, redis_client):
    start("first")
    second = start("second")
    redis_client.hincrby(KEYS.processes[2], "until", 3_600_000)
    second.run_now()
    assert leader_of(redis_client)[0] == b"second"


def set_silent(client, process, seconds, *, heard=True):
    """Have the heartbeat of a process be overdue for so long, and those of others not, unless nobody was heard."""
    now_s, _ = client.time()
    client.zadd(KEYS.processes[1], {process: int((now_s - seconds) * 1000)})
    client.hset(KEYS.processes[2], "resumed", int((now_s - 60) * 1000))
    if not heard:
        client.hset(KEYS.processes[2], "heard", int((now_s - seconds) * 1000))


def test_a_process_that_died_with_the_leader_is_lost_at_the_second_look_of_the_next_one(time, leader, ghost, start, redis_client):
    """Its heartbeats are missing for long, so it has no connection for long."""
    set_silent(redis_client, "ghost", GRACE_S)
    end_lease(redis_client)
    second = start("next")
    assert second.leadership.leads
    assert not is_lost(redis_client)
    look(second, time, 2 * LEAST_LOOK_S)
    assert is_lost(redis_client)


def test_after_a_pause_of_the_server_a_new_leader_counts_from_its_first_look(time, leader, ghost, start, redis_client):
    """Nobody was heard meanwhile: those that live have to come back first."""
    set_silent(redis_client, "ghost", 30, heard=False)
    end_lease(redis_client)
    second = start("next")
    look(second, time, times=4)
    assert not is_lost(redis_client)
    look(second, time, times=2)
    assert is_lost(redis_client)


def test_a_follower_sends_a_heartbeat_in_three_of_the_leader_and_asks_nothing(time, start, redis_client):
    start("leader")
    follower = start("follower")
    redis_client.config_resetstat()
    for _ in range(200):
        time.advance(0.1)
        if follower.task.next_run_at <= clock.now_s():
            follower.task.run()
    stats = redis_client.info("commandstats")
    # It leads by now, where the other one sends none: here its lease does not end, since the server's clock stands nearly still.
    assert stats["cmdstat_evalsha"]["calls"] in range(13, 18)
    assert "cmdstat_client|list" not in stats


def test_a_process_that_reports_and_dies_is_looked_for_again_at_once(leader, ghost, time):
    """The leader has its record from two seconds ago, and has not asked for the ids that stand there now."""
    leader.beat("ghost", replace(ghost, ids=(NOBODY + 1,)).encode())
    time.advance(LOOK_S)
    leader.lost.run()
    assert leader.lost.next_run_at <= clock.now_s() + 0.2
    time.advance(0.2)
    leader.lost.run()
    assert leader.lost.next_run_at > clock.now_s() + 0.5


def test_a_follower_that_finds_the_leader_late_leads_as_soon_as_its_lease_ends(start, time, redis_client):
    start("leader")
    follower = start("follower")
    follower.run_now()
    assert follower.heartbeat.next_run_at - clock.now_s() > 1.1
    now_s, microseconds = redis_client.time()
    redis_client.hset(KEYS.processes[2], "until", int(now_s * 1000 + microseconds / 1000 + 700))
    follower.run_now()
    assert 0.5 < follower.heartbeat.next_run_at - clock.now_s() < 0.8 + 0.1


def test_a_heartbeat_says_when_the_next_one_comes(start, redis_client):
    leader, follower = start("leader"), start("follower")
    for process, beat_s in ((leader, 0.5), (follower, 1.5)):
        process.run_now()
        process.run_now()
        now_s, microseconds = redis_client.time()
        due_s = redis_client.zscore(KEYS.processes[1], process.name) / 1000
        assert beat_s - 0.4 < due_s - now_s - microseconds / 1e6 <= beat_s


def test_a_refused_heartbeat_is_sent_again(start, time, redis_client):
    leader = start("leader")
    kept = redis_client.dump(KEYS.processes[2])
    redis_client.set(KEYS.processes[2], "foreign")
    leader.run_now()
    assert "heartbeat" in leader.task.failing
    redis_client.restore(KEYS.processes[2], 0, kept, replace=True)
    time.advance(3)
    assert leader.task.next_run_at <= clock.now_s()
    leader.task.run()
    assert leader.task.failing == {}
    assert leader.leadership.leads


def test_what_changes_during_a_heartbeat_is_told_by_another_one_at_once(start, monkeypatch, redis_client):
    process = start("p")
    beat = process.registry.beat

    def consume_meanwhile(*arguments, **options):
        reply = beat(*arguments, **options)
        process.consumed.add("other", "session of p.2", None)
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(process.registry, "beat", consume_meanwhile)
        process.run_now()
    assert not process.heartbeat.has_reported
    assert process.task.next_run_at == 0
    process.task.run()
    assert process.heartbeat.has_reported
    assert b"other" in redis_client.hget(REGISTRY, "p")


def test_a_process_that_begins_to_consume_in_another_shard_sends_heartbeats_here(start, redis_client):
    """Nobody else may do the maintenance of this shard."""
    process = start("p")
    process.consumed.remove("q", "session of p.1")
    process.task.run()
    assert not redis_client.exists(REGISTRY)
    process.elsewhere = True
    assert process.task.next_run_at == 0
    process.task.run()
    assert leader_of(redis_client)[0] == b"p"
    assert process.leadership.leads
