"""Keys of one queue's events that somebody else has written keep no reader from the events of other queues."""

from __future__ import annotations

import json

import pytest

from celery_redis_plus.cli.main import main
from celery_redis_plus.errors import WrongKeyType
from celery_redis_plus.event_log.tail import Tail
from tests.support.event_streams import add_events, lives

LIVES = lives(10)


@pytest.fixture
def two_logs(redis_client):
    for queue in ("bad", "good"):
        add_events(redis_client, queue, LIVES)


def foreign(kind):
    def damage(client):
        client.delete(f"{kind}:{{bad}}")
        client.set(f"{kind}:{{bad}}", "foreign")

    return pytest.param(damage, id=kind)


def odd(field):
    return pytest.param(lambda client: client.hset("events_meta:{bad}", field, "x"), id=field)


@pytest.mark.parametrize(
    "damage", [*map(foreign, ("events", "events_meta", "events_readers")), *map(odd, ("version", "epoch", "ended", "removed"))]
)
def test_commands_read_the_other_queues(two_logs, redis_client, broker_url, tmp_path, capsys, damage):
    damage(redis_client)
    to = tmp_path / "events.jsonl"
    assert main(["--broker", broker_url, "events", "export", "--format", "jsonl", "--output", str(to)]) == 0
    exported = [json.loads(line) for line in to.read_text().splitlines()]
    assert len([one for one in exported if one["queue"] == "good"]) == len(LIVES)
    assert main(["--broker", broker_url, "events", "archive", "--to", str(tmp_path / "archive")]) in {0, 1}
    # A field by which losses are told is odd where the status is 1.
    assert redis_client.hget("events_readers:{good}", "archive")
    capsys.readouterr()
    assert main(["--broker", broker_url, "events", "readers"]) == 0
    assert "good" in capsys.readouterr().out


def test_the_tail_goes_on_with_the_other_queues(two_logs, redis_client, log, caplog):
    tail = Tail(log, "*", last=100)
    assert len(tail.read()) == 2 * len(LIVES)
    redis_client.delete("events:{bad}")
    redis_client.set("events:{bad}", "foreign")
    add_events(redis_client, "good", LIVES[:3])
    assert {one.queue for one in tail.read()} == {"good"}
    assert tail.read() == []
    (line,) = (line for line in caplog.messages if "cannot be read" in line)
    assert "queue 'bad'" in line
    with pytest.raises(WrongKeyType):
        Tail(log, "bad", last=100)
