"""What somebody else wrote into the records of an event log holds up no message: the log is off, and says so once, or goes on."""

from __future__ import annotations

import json

import pytest
from field_descriptions import EVENTS_META_FIELDS

from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.event_log.tail import Tail
from tests.integration.broker.conftest import make_broker
from tests.integration.scripts.test_damaged_keys import sweep

pytestmark = pytest.mark.same_everywhere

SETTINGS = EventLogSettings(wanted=True, index=True)
NUMBERS = ("permille", "maxlen", "hard_maxlen", "age")
TEXTS = ("chosen", "events", "meta", "readers", "event_index", "task_index")
ODD = (None, {}, True, -1, 1e300)
#: One check looks at all fields: each has a wrong type, and two of them whatever else is wrong.
RECORDS = [
    "text", "{}", "[1]", "", "null", "1e999", '"meta"', "\xff",
    *({name: []} for name in (*NUMBERS, *TEXTS)),
    *({"maxlen": odd} for odd in (*ODD, "x")),
    *({"events": odd} for odd in (*ODD, 0.5)),
]  # fmt: skip


@pytest.fixture
def broker(redis_client):
    broker = make_broker(redis_client)
    broker.queues = Queues(broker.commands, broker.keys, transient_ttl_s=300, event_log=SETTINGS)
    broker.declare("q")
    broker.publish("q", b"1", b"2")
    yield broker
    broker.commands.close()


def look_again(broker):
    """Have the scripts look at the server again, as they do after a tenth of a second."""
    if broker.client.type("events_meta:{q}") == b"hash":
        broker.client.hset("events_meta:{q}", "checked", 1)


def work(broker):
    """Publish, claim and settle messages, and sweep the queue."""
    look_again(broker)
    broker.publish("q", b"3")
    broker.publish("q", b"4", eta="+60000")
    messages = broker.claim("q")
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    broker.settle(Settlement.ACK, messages[0])
    broker.settle(Settlement.REJECT, messages[1])
    broker.settle(Settlement.REQUEUE, messages[2])
    sweep(broker, "q")
    assert broker.client.exists("messages_index:{q}") == 0


def written(broker):
    return broker.client.xlen("events:{q}")


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_a_record_that_is_none_switches_the_log_off_until_the_next_declaration(broker, redis_client, record, caplog):
    before = written(broker)
    text = json.dumps(json.loads(SETTINGS.record(broker.keys.queue("q"))) | record) if isinstance(record, dict) else record
    redis_client.hset("meta:{q}", "event_log", text)
    work(broker)
    assert written(broker) == before
    assert len([line for line in caplog.messages if "field event_log of its record" in line]) == 1
    redis_client.hset("meta:{q}", "event_log", SETTINGS.record(broker.keys.queue("q")))
    broker.publish("q", b"5")
    assert written(broker) > before


@pytest.mark.parametrize("field", [name for name in EVENTS_META_FIELDS if name not in {"ended", "version"}])
@pytest.mark.parametrize("odd", ["x", "", "-1", "0", "1.5", "9" * 400])
def test_a_field_of_its_counters_stops_no_event(broker, redis_client, field, odd):
    before = written(broker)
    redis_client.hset("events_meta:{q}", field, odd)
    work(broker)
    assert written(broker) > before + 5


@pytest.mark.parametrize("odd", ["x", "0", "-1", "9" * 40])
def test_an_odd_epoch_is_over_and_its_events_are_counted(broker, redis_client, broker_url, odd):
    redis_client.hset("events_meta:{q}", "epoch", odd)
    work(broker)
    with EventLog(broker_url) as log:
        numbering = log.numberings(["q"])["q"]
        assert (numbering.total, numbering.trimmed) == (written(broker), 0)


@pytest.mark.parametrize("foreign", ["events", "events_meta"])
@pytest.mark.parametrize("skipped", ["x", "1"])
def test_a_key_of_another_type_skips_the_events(broker, redis_client, foreign, skipped):
    redis_client.hset("events_meta:{q}", "skipped", skipped)
    redis_client.delete(f"{foreign}:{{q}}")
    redis_client.set(f"{foreign}:{{q}}", "foreign")
    work(broker)
    if foreign == "events":
        assert int(redis_client.hget("events_meta:{q}", "skipped")) > 1


def test_an_entry_that_somebody_else_adds_stops_no_event_and_no_reader(broker, redis_client, broker_url):
    """XADD with the id `*`: the server's time, or the next number where that has passed already."""
    before = written(broker)
    with EventLog(broker_url) as log:
        tail = Tail(log, last=100)
        assert len(tail.read()) == before
        redis_client.xadd("events:{q}", {"x": "y"})
        work(broker)
        redis_client.xadd("events:{q}", {"x": "y"})
        numbering = log.numberings(["q"])["q"]
        assert numbering.total == written(broker) > before + 5
        assert len(tail.read()) == written(broker) - before - 2
        assert len(numbering.epochs) == 1
