"""What `doctor` says of a server, by what INFO and CONFIG tell."""

from __future__ import annotations

import pytest

from celery_redis_plus.admin.diagnosis import server_checks
from celery_redis_plus.admin.diagnosis.examined_broker import ExaminedBroker
from celery_redis_plus.admin.diagnosis.rights import CHECKED, WORDS
from celery_redis_plus.options import Options

#: A server at which nothing is wrong.
INFO = {
    "redis_version": "7.2.4",
    "valkey_version": "9.1.2",
    "uptime_in_seconds": "90",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "rdb_last_bgsave_status": "ok",
    "rdb_last_save_time": "1000",
    "rdb_changes_since_last_save": "5",
    "server_time_usec": "1060000000",
    "maxmemory_policy": "noeviction",
    "maxmemory": "1000",
    "used_memory": "500",
    "total_system_memory": "4000",
    "connected_clients": "10",
    "maxclients": "100",
    "rejected_connections": "0",
    "master_repl_offset": "70000000",
    "number_of_cached_scripts": "70",
    "used_memory_scripts": "200000",
}
SETTINGS = {"save": "3600 1", "appendfsync": "everysec"}


def findings(check, info=None, settings=SETTINGS, **options):
    broker = ExaminedBroker(None, None, Options(**options))
    broker.info, broker.settings = {**INFO, **(info or {})}, settings
    return list(getattr(server_checks, check)(broker))


@pytest.mark.parametrize(
    "check", ["server", "persistence", "eviction", "memory", "clients", "replication", "scripts"]
)  # fmt: skip
def test_nothing_is_wrong_with_a_healthy_server(check):
    (finding,) = findings(check)
    assert (finding.check, finding.level, finding.advice) == (check, "ok", "")


@pytest.mark.parametrize(
    ("check", "info", "level", "text"),
    [
        (
            "persistence",
            {"aof_enabled": "0"},
            "danger",
            "only snapshots, the last one 1 min ago: a crash loses all changes since, 5 now",
        ),
        ("persistence", {"aof_last_write_status": "err"}, "danger", "could not write to its disk: aof_last_write_status"),
        ("eviction", {"maxmemory_policy": "allkeys-lru"}, "danger", "the server deletes waiting messages"),
        ("eviction", {"maxmemory_policy": "volatile-ttl"}, "danger", "may delete replies and forget publishes"),
        ("eviction", {"maxmemory_policy": "allkeys-lru", "maxmemory": "0"}, "advice", "without effect as long as maxmemory is 0"),
        ("memory", {"used_memory": "950"}, "danger", "950 B of 1.0 kB maxmemory in use (95%)"),
        ("memory", {"used_memory": "800"}, "advice", "(80%)"),
        ("memory", {"maxmemory": "0"}, "advice", "of the host in use (12%)"),
        ("memory", {"maxmemory": "0", "used_memory": "3900"}, "danger", "of the host in use (98%)"),
        ("memory", {"maxmemory": "0", "total_system_memory": ""}, "advice", "no maxmemory"),
        ("clients", {"connected_clients": "95"}, "danger", "95 connection(s) of 100"),
        ("clients", {"rejected_connections": "3"}, "advice", "3 were refused since the server's start"),
        ("scripts", {"number_of_cached_scripts": "5000"}, "advice", "5,000 scripts"),
        ("replication", {"slave0": "ip=a,port=1,state=wait_bgsave,offset=0,lag=0"}, "advice", "0 of 1 replicas in sync"),
        ("replication", {"slave0": "ip=a,port=1,state=online,offset=9,lag=1"}, "advice", "the slowest 70 MB behind"),
        ("replication", {"slave0": "ip=a,port=1,state=online,offset=70000000,lag=1"}, "ok", "1 of 1 replicas in sync"),
    ],
)
def test_what_is_wrong_is_found(check, info, level, text):
    finding = findings(check, info)[0]
    assert (finding.check, finding.level) == (check, level)
    assert text in finding.text
    assert finding.advice


def test_a_server_that_keeps_nothing_on_disk_is_a_danger():
    (finding,) = findings("persistence", {"aof_enabled": "0"}, {"save": ""})
    assert (finding.level, finding.text) == ("danger", "nothing is written to disk: a restart of the server loses all messages")


def test_an_append_only_file_without_fsync_is_worth_advice():
    (finding,) = findings("persistence", settings={"appendfsync": "no"})
    assert (finding.level, finding.text) == ("advice", "append-only file without fsync")


def test_where_config_is_refused_the_rest_is_told():
    (finding,) = findings("persistence", settings={})
    assert (finding.level, finding.text) == ("ok", "append-only file, fsync unknown: CONFIG is refused")


def test_fewer_replicas_than_publishes_wait_for_are_a_danger():
    (finding,) = findings("replication", wait_replicas=1)
    assert (finding.level, finding.text) == ("danger", "no replicas, and wait_replicas is 1: no publish is confirmed")
    (finding,) = findings("replication", {"slave0": "ip=a,port=1,state=online,offset=70000000,lag=1"}, wait_replicas=1)
    assert finding.level == "ok"


def test_fewer_confirmations_than_replicas_are_told():
    replicas = {f"slave{number}": "ip=a,port=1,state=online,offset=70000000,lag=1" for number in range(2)}
    (finding,) = findings("replication", replicas, wait_replicas=1)
    assert (finding.level, finding.advice) == ("advice", "With wait_replicas=2 such a failover loses none.")
    (finding,) = findings("replication", replicas, wait_replicas=2)
    assert finding.level == "ok"


REPLICA = {"slave0": "ip=a,port=1,state=online,offset=70000000,lag=1"}


@pytest.mark.parametrize(
    ("good", "minimum", "level", "text"),
    [
        ("0", "1", "danger", "the server refuses publishes: min-replicas-to-write is 1, with 0 good replica(s)"),
        ("1", "2", "danger", "the server refuses publishes: min-replicas-to-write is 2, with 1 good replica(s)"),
        ("1", "1", "ok", "1 of 1 replicas in sync"),
        # Where CONFIG is refused, INFO tells that there is a minimum, not which.
        ("0", None, "danger", "the server refuses publishes: min-replicas-to-write is set, with 0 good replica(s)"),
        ("1", None, "unknown", "min-replicas-to-write is set, CONFIG is refused: 1 good replica(s) may be too few"),
    ],
)
def test_a_server_that_refuses_publishes_for_want_of_replicas_is_a_danger(good, minimum, level, text):
    settings = {} if minimum is None else {"min-replicas-to-write": minimum}
    finding = findings("replication", {**REPLICA, "min_slaves_good_slaves": good}, settings)[0]
    assert (finding.level, finding.text.startswith(text)) == (level, True), finding
    assert finding.values["good_replicas"] == int(good)


def test_every_command_of_the_roles_can_be_asked_for():
    """A command that a role gets needs a line in `admin/diagnosis/rights.py`."""
    assert set(WORDS) == {command for role in CHECKED for command in role.commands()}
