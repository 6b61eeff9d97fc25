"""The event logs of all shards as one: what is read, what is told, and what a shard that is away keeps back."""

from __future__ import annotations

import json
import threading

import pytest

from celery_redis_plus.cli.main import main
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.shard_layout import shard_of, shard_prefixes
from celery_redis_plus.errors import InvalidArgument, NoEvents, OptionError, ShardUnreachable
from celery_redis_plus.event_log import readers
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.event_log.tail import Tail
from celery_redis_plus.keys import SHARDS_FORMAT_VERSION, Keys
from celery_redis_plus.shards import absent_shard
from celery_redis_plus.shards.event_logs import events_at
from tests.integration.shards.conftest import SHARDS, named, refuse_shard
from tests.support.event_streams import START_MS, add_events, lives
from tests.support.waiting import wait_until

PREFIXES = shard_prefixes("", SHARDS)
QUEUES = [named(shard) for shard in range(SHARDS)]
LIVES = lives(40)


@pytest.fixture
def url(broker_url):
    return f"{broker_url}?shards={SHARDS}"


@pytest.fixture
def counts(redis_client):
    """Events in a queue of each shard; returns how many each has."""
    return {
        queue: add_events(redis_client, queue, LIVES[: 20 + shard], prefix=PREFIXES[shard]) for shard, queue in enumerate(QUEUES)
    }


@pytest.fixture
def shard_away(monkeypatch):
    """Let shard 1 be away, until `shard_away()` is called."""
    real = Connector.open
    monkeypatch.setattr(Connector, "open", refuse_shard(1))
    monkeypatch.setattr(absent_shard, "PAUSE_S", 0.01)
    return lambda: monkeypatch.setattr(Connector, "open", real)


def printed(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_events_of_all_shards_are_read_as_those_of_one_broker(url, counts):
    with events_at(url) as log:
        assert log.queues() == sorted(QUEUES)
        assert log.queues(f"{QUEUES[2]},{QUEUES[0]}") == sorted([QUEUES[0], QUEUES[2]])
        assert {queue: of.total for queue, of in log.numberings(log.queues()).items()} == counts
        assert [log.shard_of(queue) for queue in QUEUES] == list(range(SHARDS))
        for queue, count in counts.items():
            assert sum(len(entries) for entries in log.chunks(queue, START_MS, 1, count, 7)) == count
        numbering = log.numberings([QUEUES[2]])[QUEUES[2]]
        assert log.first_after(numbering, LIVES[5].ts // 1000 + 1) == 6
        with pytest.raises(NoEvents, match="queue 'other' has no events; queues that have: q0, q1, q2"):
            log.queues("other")
    with events_at(url, shard=1) as log:
        assert log.queues() == [QUEUES[1]]
        with pytest.raises(InvalidArgument, match="these are events of shard 2; read here: 1"):
            log.of(QUEUES[2])


def test_events_of_a_queue_on_another_shard_are_known_by_another_name(url, redis_client, counts):
    queue, count = QUEUES[2], add_events(redis_client, QUEUES[2], LIVES[:5], prefix=PREFIXES[0], epoch=START_MS - 1)
    odd = "q (shard 0)"
    home = shard_of(odd, SHARDS)
    add_events(redis_client, odd, LIVES[:3], prefix=PREFIXES[home])
    with events_at(url) as log:
        names = {f"{queue} (shard 0)": (queue, 0), f"{odd} (shard {home})": (odd, home)}
        assert set(log.queues()) == {*QUEUES, *names}
        assert log.queues(queue) == [queue, f"{queue} (shard 0)"]
        assert {name: (log.queue_of(name), log.shard_of(name)) for name in names} == names
        found = log.numberings(log.queues())
        assert [found[name].total for name in (queue, *names)] == [counts[queue], count, 3]
        assert {one.queue for one in Tail(log, last=1000).read()} == {*QUEUES, odd}


def test_readers_of_all_shards_are_listed_and_dropped(url, counts, capsys):
    with events_at(url) as log:
        readers.commit(log, "r", dict.fromkeys(QUEUES, (START_MS, 5)), trim=False)
        behind = {queue: counts[queue] - 5 for queue in QUEUES}
        assert [(one.queue, one.behind) for one in readers.readers(log, QUEUES)] == list(behind.items())
    assert main(["events", "readers", "--broker", url, "--json"]) == 0
    assert {one["queue"]: one["behind"] for one in printed(capsys)} == behind
    assert main(["events", "drop-reader", "r", "--broker", url, "--json"]) == 0
    assert printed(capsys) == [{"reader": "r", "dropped": SHARDS}]


def test_the_command_line_shows_and_exports_the_events_of_all_shards(url, counts, capsys, tmp_path):
    pytest.importorskip("pyarrow")
    for words in (["export", "--format", "jsonl", "--output", "-"], ["tail", "--no-follow", "--json", "--last", "1000"]):
        assert main(["events", words[0], "--broker", url, *words[1:]]) == 0
        found = printed(capsys)
        assert {queue: sum(one["queue"] == queue for one in found) for queue in QUEUES} == counts
        assert words[0] == "export" or [one["ts"] for one in found] == sorted(one["ts"] for one in found)
    assert main(["events", "archive", "--broker", url, "--to", str(tmp_path), "--json"]) == 0
    assert {one["queue"] for one in printed(capsys)} == set(QUEUES)


def test_another_number_of_shards_is_refused_since_queues_would_be_missing(broker_url, url, redis_client, counts):
    redis_client.set(Keys("").database_id, f"{SHARDS_FORMAT_VERSION}.00.{SHARDS}")
    for wrong in (broker_url, f"{broker_url}?shards=2"):
        with events_at(wrong) as log, pytest.raises(OptionError, match="allowed: 3, the number of shards"):
            log.queues()
    with events_at(url) as log:
        assert log.queues() == sorted(QUEUES)


def test_what_reads_once_fails_where_a_shard_is_away(url, counts, shard_away, capsys):
    with events_at(url) as log, pytest.raises(ShardUnreachable, match="shard 1 of 3 is unreachable: no connection"):
        log.queues()
    assert main(["events", "export", "--broker", url, "--format", "jsonl", "--output", "-"]) != 0
    assert "shard 1 of 3 is unreachable" in capsys.readouterr().err
    assert main(["events", "export", "--broker", url, "--shard", "2", "--format", "jsonl", "--output", "-"]) == 0


def test_what_follows_goes_on_without_a_shard_that_is_away_until_it_is_back(url, counts, shard_away, caplog):
    others = sorted([QUEUES[0], QUEUES[2]])
    with events_at(url, partial=True) as log:
        assert log.queues() == log.queues(f"{QUEUES[1]},{','.join(others)}") == others
        assert list(log.unreachable) == [1]
        found, foreign = log.sound_numberings(QUEUES)
        assert sorted(found) == others
        assert isinstance(foreign[QUEUES[1]], ShardUnreachable)
        assert sum("shard 1 of 3 is unreachable" in line for line in caplog.messages) == 1
        tail = Tail(log, last=1000)
        assert {one.queue for one in tail.read()} == set(others)
        shard_away()
        wait_until(lambda: {one.queue for one in tail.read()} == {QUEUES[1]})
        assert not log.unreachable


def test_the_reader_asks_a_shard_that_is_away_once_and_a_thread_asks_again(url, counts, shard_away, monkeypatch):
    """A server that is switched off answers nothing for the whole `socket_connect_timeout`: the reader waits for it once."""
    asked, away = [], Connector.open

    def refused(self, purpose, *, timeout):
        if self.options.global_keyprefix == PREFIXES[1]:
            asked.append(threading.current_thread())
        return away(self, purpose, timeout=timeout)

    monkeypatch.setattr(Connector, "open", refused)
    with events_at(url, partial=True) as log:
        log.queues()
        wait_until(lambda: log.queues() and len(asked) > 20)
        assert asked.count(threading.current_thread()) == 1
        shard_away()
        wait_until(lambda: set(log.queues()) == set(QUEUES))
        wait_until(lambda: not asked[-1].is_alive())


@pytest.mark.parametrize("end", ["close", "forget"])
def test_the_thread_that_asks_ends_with_its_reader(url, counts, shard_away, end):
    log = events_at(url, partial=True)
    log.queues()
    asking = next(thread for thread in threading.enumerate() if "absent shard" in thread.name)
    log.close()
    if end == "forget":
        log.queues()
        asking = next(thread for thread in threading.enumerate() if "absent shard" in thread.name and thread is not asking)
        del log
    wait_until(lambda: not asking.is_alive())


def test_where_no_shard_can_be_reached_that_is_an_error(url, counts, monkeypatch):
    def refused(self, purpose, *, timeout):
        raise ShardUnreachable("none")

    monkeypatch.setattr(Connector, "open", refused)
    with events_at(url, partial=True) as log, pytest.raises(ShardUnreachable, match="shard 0 of 3"):
        log.queues()


def test_the_event_log_of_one_shard_reads_its_own(url):
    with pytest.raises(OptionError, match=r"this is for one shard of the 3"):
        EventLog(url)
