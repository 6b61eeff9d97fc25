"""A field of a message's hash that is no number, though it should be, ends that message alone, as a dead letter.

Each script that has a scenario in `test_failing_scripts.py` meets such messages beside good ones, and fails for neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import RedisError

from celery_redis_plus.broker.consumers.settlement import Settlement
from tests.integration.broker.conftest import make_broker
from tests.integration.scripts import workshop
from tests.integration.scripts.test_damaged_keys import sweep
from tests.integration.scripts.test_failing_scripts import SCENARIOS

if TYPE_CHECKING:
    from tests.integration.scripts.workshop import Workshop

pytestmark = pytest.mark.same_everywhere

FIELDS = (
    "score", "claim", "failed", "requeues", "unbegun", "seen", "begun", "expires", "ttl_ms", "delay", "rank", "died",
    "task_expiry",
)  # fmt: skip
ODD = (b"abc", b"", b"\xff\x00 \n", b"1.5", b"nan", b"1e999", b"9" * 30, b" 7", b"0x10", b"007", b"-0", b"9" * 5000)
#: One message of each place; its neighbours stay good.
DAMAGED = {b"dead1", b"held1", b"ready1", b"mortal", b"later1"}
DAMAGE = """
for _, key in ipairs(redis.call('KEYS', 'message:{q}:*')) do
  local payload, body = unpack(redis.call('HMGET', key, 'payload', 'body'))
  body = body or string.match(payload or '', '\\n(.*)') or ''
  for i = 3, #ARGV do
    if ARGV[i] == body then redis.call('HSET', key, ARGV[1], ARGV[2]) end
  end
end
"""
#: Values that each field of each scenario gets with `--weekly`, the next one others. Without it each field of a script gets one,
#: in one scenario.
VALUES_EACH = 4


@pytest.fixture(autouse=True)
def keep_all_dead_letters(monkeypatch):
    """No dead letter has to go for another."""
    monkeypatch.setattr(workshop, "DEAD_MAX", 50)


def damage(shop: Workshop, field: str, value: bytes) -> None:
    shop.client.eval(DAMAGE, 0, field, value, *DAMAGED)


def cases(name: str, *, weekly: bool) -> Iterator[tuple[str, bytes, int]]:
    """Yield field, value, number of the scenario."""
    at = sum(name.encode())
    scenarios = range(len(SCENARIOS[name]))
    for place, field in enumerate(FIELDS):
        for number in scenarios if weekly else [scenarios[place % len(scenarios)]]:
            for _ in range(VALUES_EACH if weekly else 1):
                yield field, ODD[at % len(ODD)], number
                at += 1
        at += 1


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_script_that_meets_damaged_messages_fails_for_none_and_loses_none(shop, name, caplog, weekly):
    wrong = []
    for field, value, number in cases(name, weekly=weekly):
        scenario = SCENARIOS[name][number]
        one = shop()
        one.fill(**scenario.arguments)
        scenario.before(one)
        before = {body for body, count in one.found().items() if count}
        damage(one, field, value)
        caplog.clear()
        try:
            scenario.act(one)
            one.recover()
        except RedisError as error:
            wrong.append((field, value, number, str(error)))
        # The scripts of some scenarios are told to keep five dead letters.
        evicted = {b"dead1", b"dead2"} if one.client.hexists(one.q.meta, "dead_evicted") else set()
        found = one.found()
        wrong += [(field, value, number, body) for body in before - scenario.ends - scenario.moves - evicted if found[body] != 1]
        wrong += [(field, value, number, line) for line in caplog.messages if "cannot be swept" in line]
    assert wrong == []


@pytest.fixture
def broker(redis_client):
    broker = make_broker(redis_client)
    broker.declare("q")
    yield broker
    broker.commands.close()


def dead_letters(broker):
    return [
        tuple(broker.client.hmget(b"message:{q}:" + tag, "reason", "error", "payload"))
        for tag in broker.client.zrange("dead:{q}", 0, -1)
    ]


@pytest.mark.parametrize("field", ["claim", "failed", "seen", "expires"])
def test_a_claim_leaves_a_damaged_message_to_the_sweep_and_takes_its_neighbours(broker, field):
    broker.publish("q", b"1", b"2", b"3")
    broker.settle(Settlement.RELEASE_UNSEEN, *broker.claim("q"))
    tag = broker.client.zrange("queue:{q}", 1, 1)[0]
    broker.client.hset(b"message:{q}:" + tag, mapping={"claim": 1, field: "text\t\xff"})
    assert broker.bodies("q") == [b"1", b"3"]
    sweep(broker, "q")
    ((reason, error, payload),) = dead_letters(broker)
    assert (reason, payload.partition(b"\n")[2]) == (b"damaged", b"2")
    assert error.startswith(f"DamagedMessage: field {field} is no whole number: text".encode())
    assert broker.client.hget("meta:{q}", "damaged") == b"1"


@pytest.mark.parametrize("how", ["REQUEUE", "FAIL", "REJECT", "RELEASE_SEEN"])
@pytest.mark.parametrize("field", ["failed", "score"])
def test_a_settlement_of_several_goes_on_behind_a_damaged_one(broker, how, field):
    broker.publish("q", b"1", b"2", b"3")
    messages = broker.claim("q")
    broker.client.hset(f"message:{{q}}:{messages[1].tag}", field, "text")
    broker.settle(Settlement[how], *messages)
    assert broker.client.exists("messages_index:{q}") == 0
    sweep(broker, "q")
    dead = {payload.partition(b"\n")[2]: reason for reason, _, payload in dead_letters(broker)}
    if how == "RELEASE_SEEN" and field == "failed":
        # It was not read: the next claim does.
        assert broker.bodies("q") == [b"1", b"3"]
        sweep(broker, "q")
        dead = {payload.partition(b"\n")[2]: reason for reason, _, payload in dead_letters(broker)}
    assert dead.pop(b"2") == b"damaged"
    assert set(dead) == ({b"1", b"3"} if how == "REJECT" else set())
