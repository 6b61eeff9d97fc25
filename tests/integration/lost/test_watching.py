"""What a watcher takes for the loss of a process, with a clock of the test's own: a look takes as long as the test says."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.processes import LOST, ProcessRecord
from celery_redis_plus.maintenance.lost_processes import LOOK_S, STALE_S, TAKE_OVER_S
from tests.integration.lost.conftest import KEYS, Process

REGISTRY = KEYS.processes[0]
GRACE_S = 5.0
#: No connection has this id.
NOBODY = 10**9


@pytest.fixture
def watcher(start):
    return start("watcher")


@pytest.fixture
def ghost(watcher, redis_client):
    """The record of a process that has no connection."""
    run = redis_client.info("server")["run_id"]
    record = ProcessRecord(run, (NOBODY,), GRACE_S, ("ghost",), ("q",), "host", 1)
    watcher.registry.report("ghost", record.encode(), watches=False, version="")
    watcher.task.run_soon()
    watcher.task.run()
    return record


def look(watcher, time, seconds=LOOK_S, times=1):
    for _ in range(times):
        time.advance(seconds)
        watcher.task.run()


def is_lost(client):
    record = client.hget(REGISTRY, "ghost")
    return record is None or record.startswith(LOST.encode())


def test_a_process_without_a_connection_is_lost_after_the_grace(time, watcher, ghost, redis_client):
    look(watcher, time, times=4)
    assert not is_lost(redis_client)
    look(watcher, time)
    assert sorted(redis_client.hkeys(REGISTRY)) == [b"version", b"watcher"]


def test_a_process_with_one_connection_left_is_not_lost(time, watcher, ghost, redis_client):
    record = replace(ghost, ids=(redis_client.client_id(), NOBODY))
    watcher.registry.report("ghost", record.encode(), watches=False, version="")
    look(watcher, time, times=20)
    assert not is_lost(redis_client)


def test_time_in_which_nobody_looked_begins_all_absences_anew(time, watcher, ghost, redis_client):
    look(watcher, time, times=4)
    look(watcher, time, seconds=10)
    look(watcher, time, times=4)
    assert not is_lost(redis_client)
    look(watcher, time)
    assert is_lost(redis_client)


def test_a_pause_within_a_look_begins_all_absences_anew(time, watcher, ghost, redis_client, monkeypatch):
    """The server stops after it has read the question, and workers that timed out meanwhile come back after the answer."""
    look(watcher, time, times=4)
    ask = watcher.registry.connected

    def paused(ids):
        time.advance(10)
        return ask(ids)

    with monkeypatch.context() as patch:
        patch.setattr(watcher.registry, "connected", paused)
        look(watcher, time)
    look(watcher, time, times=4)
    assert not is_lost(redis_client)


def test_a_pause_for_writes_begins_all_absences_anew(time, watcher, ghost, redis_client, monkeypatch):
    """CLIENT PAUSE WRITE: CLIENT LIST answers, and nobody can store new ids. A watcher that misses somebody writes as well."""
    report = watcher.registry.report

    def paused(*args, **options):
        time.advance(10)
        return report(*args, **options)

    look(watcher, time, times=4)
    with monkeypatch.context() as patch:
        patch.setattr(watcher.registry, "report", paused)
        look(watcher, time)
    look(watcher, time, times=4)
    assert not is_lost(redis_client)


def test_slow_looks_count_less_than_they_take(time, watcher, ghost, redis_client):
    look(watcher, time, seconds=2.9, times=3)
    assert not is_lost(redis_client)
    look(watcher, time, seconds=2.9)
    assert is_lost(redis_client)


def test_a_process_that_reconnects_within_the_grace_is_not_lost(time, watcher, ghost, redis_client):
    for number in range(3):
        look(watcher, time, times=4)
        # It had a connection in between that is gone again.
        record = replace(ghost, ids=(NOBODY + number + 1,))
        watcher.registry.report("ghost", record.encode(), watches=False, version="")
    look(watcher, time, times=4)
    assert not is_lost(redis_client)


def test_a_process_that_comes_back_at_the_last_moment_is_not_lost(time, watcher, ghost, redis_client, monkeypatch):
    look(watcher, time, times=4)
    lose = watcher.registry.replace
    record = replace(ghost, ids=(redis_client.client_id(),)).encode()

    def too_late(*args):
        watcher.registry.report("ghost", record, watches=False, version="")
        return lose(*args)

    monkeypatch.setattr(watcher.registry, "replace", too_late)
    look(watcher, time, times=5)
    assert redis_client.hget(REGISTRY, "ghost") == record.encode()


def test_a_record_of_another_run_of_the_server_says_nothing_and_goes_after_a_while(time, watcher, ghost, redis_client):
    watcher.registry.report("ghost", replace(ghost, run="f" * 40).encode(), watches=False, version="")
    look(watcher, time, times=20)
    assert not is_lost(redis_client)
    look(watcher, time, seconds=STALE_S)
    assert redis_client.hget(REGISTRY, "ghost") is None


def test_a_record_that_a_later_version_wrote_is_left_alone(time, watcher, ghost, redis_client):
    watcher.registry.report("ghost", '{"other":1}', watches=False, version="")
    look(watcher, time, times=20)
    assert redis_client.hget(REGISTRY, "ghost") == b'{"other":1}'


def test_what_a_dead_watcher_has_left_is_finished_by_another_one(time, watcher, ghost, redis_client):
    watcher.registry.report("ghost", LOST + ghost.encode(), watches=False, version="")
    look(watcher, time)
    assert is_lost(redis_client)
    look(watcher, time, times=int(TAKE_OVER_S) + 2)
    assert redis_client.hget(REGISTRY, "ghost") is None


def test_processes_with_the_same_client_id_are_not_watched(time, watcher, ghost, redis_client, caplog):
    """A proxy shares its connections: the end of one says nothing."""
    for name in ("a", "b"):
        watcher.registry.report(name, replace(ghost, ids=(7,)).encode(), watches=False, version="")
    with caplog.at_level(logging.WARNING):
        look(watcher, time, times=20)
    assert not is_lost(redis_client)
    assert [record.getMessage().partition("(proc")[2] for record in caplog.records] == [
        "esses have the same client ids, as behind a proxy that shares connections)"
    ]
    # Nor can others tell from its connections whether this process lives.
    assert redis_client.hget(REGISTRY, "watcher") is None


def test_a_server_that_does_not_list_the_watcher_itself_is_not_believed(time, watcher, ghost, redis_client, monkeypatch, caplog):
    monkeypatch.setattr(watcher.registry, "connected", lambda ids: set())
    with caplog.at_level(logging.WARNING):
        look(watcher, time, times=20)
    assert not is_lost(redis_client)
    assert len(caplog.records) == 1


def test_a_process_whose_connections_share_an_id_does_not_report(broker_url, redis_client, caplog):
    process = Process("shared", broker_url)
    process.timers.connect()
    process.commands.connect()
    process.timers.client_id = process.commands.client_id
    with caplog.at_level(logging.WARNING):
        process.task.run()
    assert "one client id" in caplog.text
    assert not redis_client.exists(REGISTRY)
    process.close()


def test_a_flushed_database_gets_the_record_again(time, watcher, redis_client):
    stored = redis_client.hget(REGISTRY, "watcher")
    redis_client.flushdb()
    look(watcher, time, seconds=11)
    assert redis_client.hget(REGISTRY, "watcher") == stored


def test_a_process_that_consumes_nothing_more_leaves_no_key(watcher, redis_client):
    watcher.watched.remove("q", "session of watcher.1")
    assert watcher.task.next_run_at == 0
    watcher.task.run()
    assert not redis_client.exists(*KEYS.processes[:2])


def test_two_processes_watch_and_a_third_one_replaces_a_lost_watcher(time, start, redis_client):
    processes = {name: start(name) for name in ("a", "b", "c")}
    for process in processes.values():
        process.task.run_soon()
        process.task.run()
    watchers = {name.decode() for name in redis_client.zrange(KEYS.processes[1], 0, -1)}
    assert watchers == {"a", "b"}
    processes["a"].close()
    wakeup = KEYS.processes[2] + b"c"
    redis_client.delete(wakeup)
    look(processes["b"], time)
    # Long before the grace is over. Whoever waits for the wake-up looks at once.
    assert redis_client.zrange(wakeup, 0, -1) == [b"watch"]
    processes["c"].task.run_soon()
    processes["c"].task.run()
    assert {*redis_client.zrange(KEYS.processes[1], 0, -1)} == {b"b", b"c"}


def test_a_process_that_was_alone_is_woken_when_there_is_one_to_watch(time, start, redis_client):
    start("alone")
    start("new")
    assert redis_client.keys("watch_wakeup:*") == [KEYS.processes[2] + b"alone"]


def test_a_process_that_is_alone_is_among_the_watchers_when_others_come(time, start, redis_client):
    """Else these are all the watchers there are. Who is killed together with another one takes them with him."""
    alone = start("alone")
    (_, until), (seconds, microseconds) = redis_client.zrange(KEYS.processes[1], 0, -1, withscores=True)[0], redis_client.time()
    lease_s = until / 1000 - seconds - microseconds / 1e6
    assert lease_s > 2 * (alone.task.next_run_at - clock.now_s())
    for name in ("b", "c"):
        start(name)
    assert {*redis_client.zrange(KEYS.processes[1], 0, -1)} == {b"alone", b"b"}


def test_when_a_watchers_lease_ends_the_other_one_has_it_replaced(start, redis_client):
    """It is stuck, or frozen: its connections are there."""
    processes = {name: start(name) for name in ("a", "b", "c")}
    redis_client.zadd(KEYS.processes[1], {"a": 1})
    wakeup = KEYS.processes[2] + b"c"
    redis_client.delete(wakeup)
    processes["b"].task.run_soon()
    processes["b"].task.run()
    assert redis_client.zrange(wakeup, 0, -1) == [b"watch"]


def test_a_busy_process_that_does_not_watch_sends_a_command_in_ten_seconds(time, start, redis_client):
    for name in ("a", "b", "c"):
        start(name)
    third = start("d")
    third.claim()
    look(third, time, seconds=0.5, times=4)
    redis_client.config_resetstat()
    for _ in range(600):
        time.advance(0.1)
        if third.task.next_run_at <= clock.now_s():
            third.task.run()
    stats = redis_client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] in range(5, 8)
    assert "cmdstat_client|list" not in stats


def test_a_process_that_reports_and_dies_is_looked_for_again_at_once(watcher, ghost, time):
    """The watcher has its record from two seconds ago, and has not asked for the ids that stand there now."""
    watcher.registry.report("ghost", replace(ghost, ids=(NOBODY + 1,)).encode(), watches=False, version="")
    time.advance(LOOK_S)
    watcher.task.run()
    assert watcher.task.next_run_at <= clock.now_s() + 0.2
    time.advance(0.2)
    watcher.task.run()
    assert watcher.task.next_run_at > clock.now_s() + 0.5
