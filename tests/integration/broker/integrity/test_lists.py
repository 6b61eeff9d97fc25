"""Damage to what queues have in common: records, lists, ids, bindings, and keys that have to vanish."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.exchanges.exchange_record import ExchangeRecord, encode_exchange
from celery_redis_plus.broker.exchanges.routing import Binding
from celery_redis_plus.broker.integrity.registry_checks import RegistryChecks
from celery_redis_plus.errors import DamagedRecord
from celery_redis_plus.record_fields import COUNTERS, TIMES


def test_a_lost_record_is_written_anew_and_the_next_declaration_replaces_it(broker, state):
    arguments = {"x-max-priority": 5, "x-message-ttl": 600_000}
    broker.declare("r", arguments=arguments)
    state.publish("r", b"x", life="")
    keys = broker.keys.queue("r")
    queue_id = broker.client.hget(keys.meta, "id")
    broker.client.delete(keys.meta)

    assert state.rules() == {"no-record": 1}
    state.check(repair=True)
    assert broker.client.hget(keys.meta, "id") == queue_id
    assert broker.bodies("r") == [b"x"]
    broker.queues.declare("r", broker.queues.arguments("r"))
    assert broker.client.hget(keys.meta, "message_ttl") == b"600000"
    assert not broker.client.hexists(keys.meta, "assumed")
    assert state.check() == []


@pytest.mark.parametrize("left", ["set", "hash", "list"])
def test_a_lost_record_is_noticed_by_whatever_is_left_of_the_queue(state, left):
    state.client.delete(state.keys.meta)
    if left != "list":
        state.client.delete(state.broker.keys.queues)
    if left == "hash":
        state.client.delete(*(key for key in state.keys.structure() if key != state.keys.meta))
    if left == "list":
        state.client.delete(*state.client.keys("message:*"), *state.keys.structure())

    assert state.rules() == {"no-record": 1}
    state.repair()


def test_a_queue_that_is_not_listed_is_listed(state):
    state.broker.declare("ttl", arguments={"x-message-ttl": 1000})
    state.broker.declare("t", arguments={"x-expires": 60_000})
    state.client.delete(state.broker.keys.queues, state.broker.keys.always_swept)

    assert state.rules() == {"unlisted": 4}
    state.repair()
    assert state.client.zscore(state.broker.keys.queues, "q") == float("inf")
    assert state.client.zscore(state.broker.keys.queues, "t") < float("inf")


def test_what_only_the_second_look_meets_is_not_believed(state, monkeypatch):
    """It may be on its way."""
    state.client.zrem(state.broker.keys.queues, "q")
    state.broker.declare("r")
    suspects, looks = RegistryChecks.suspects, []

    def next_look(checks, *arguments):
        if looks:
            state.client.zrem(state.broker.keys.queues, "r")
        looks.append(arguments)
        return suspects(checks, *arguments)

    monkeypatch.setattr(RegistryChecks, "suspects", next_look)
    assert [violation.owner for violation in state.check()] == ["q"]
    assert len(looks) == 2


def test_what_a_transient_queue_left_is_cleared_away_when_no_janitor_did(state):
    broker, client = state.broker, state.client
    broker.declare("t", arguments={"x-expires": 60_000})
    state.publish("t", b"x")
    keys = broker.keys.queue("t")
    client.delete(keys.meta)
    client.persist(keys.ready)
    assert state.check() == []

    client.zadd(broker.keys.queues, {"t": 5})
    assert state.rules() == {"left-behind": 1}
    state.repair()
    # What is left expires by itself.
    assert all(client.pttl(key) > 0 for key in client.keys("*{t}*"))
    assert client.zscore(broker.keys.queues, "t") < 0


@pytest.mark.parametrize("kind", ["wakeup", "schedule_wakeup", "trash"])
def test_keys_of_no_queue_are_removed_without_making_one(state, kind):
    state.client.zadd(getattr(state.broker.keys.queue("gone"), kind), {"work": 0})

    assert state.rules() == {"orphan-keys": 1}
    state.repair()
    assert not state.client.keys("*{gone}*")
    assert state.client.zscore(state.broker.keys.queues, "gone") is None


def test_dead_bindings_are_removed_and_live_ones_stay(state, broker):
    bindings = Bindings(broker.commands, broker.keys)
    bindings.declare("e", ExchangeRecord("topic"))
    for queue in ("q", "gone"):
        bindings.bind("e", Binding(queue, "k"))

    (violation,) = state.check()
    assert (violation.rule, violation.owner, violation.subject) == ("dead-binding", "e", '["gone","k"]')
    state.repair()
    assert [binding.queue for binding in bindings.all("e")] == ["q"]

    state.client.hdel(broker.keys.binding("e"), "version")
    assert state.rules() == {"no-version": 1}
    state.repair()


def test_what_cannot_be_read_is_reported_and_left_alone(state, broker):
    broker.declare("r", "new")
    state.client.hset(broker.keys.exchanges, "e", "no json")
    state.client.hset(broker.keys.queue("r").meta, "arguments", "no json")
    state.client.hset(broker.keys.queue("new").meta, "format", 99)
    before = state.client.hgetall(broker.keys.queue("new").meta)

    assert set(state.rules(repair=True)) == {"unreadable-exchange", "unreadable-record", "newer-format"}
    assert state.client.hgetall(broker.keys.queue("new").meta) == before


@pytest.mark.parametrize("version", [b"1", b"text"])
def test_bindings_that_cannot_be_read_are_removed(state, broker, version):
    bindings = Bindings(broker.commands, broker.keys)
    bindings.declare("e", ExchangeRecord("topic"))
    bindings.bind("e", Binding("q", "k"))
    state.client.hset(broker.keys.binding("e"), mapping={"version": version, "no json": "", '["q",5]': ""})
    rules = {"unreadable-binding": 2} | ({} if version.isdigit() else {"no-version": 1})

    assert state.rules() == rules
    state.repair()
    assert state.check() == []
    assert [binding.queue for binding in bindings.all("e")] == ["q"]


def test_a_key_of_another_type_is_named_and_stays(state):
    state.client.delete(state.keys.dead)
    state.client.set(state.keys.dead, "somebody's")

    (violation,) = state.check(repair=True)
    assert (violation.rule, violation.subject, violation.repaired) == ("wrong-type", "dead:{q}", False)
    assert state.client.get(state.keys.dead) == b"somebody's"


@pytest.mark.parametrize("field", [*COUNTERS, *TIMES])
@pytest.mark.parametrize("value", ["x", "1e400", "1e18"])
def test_a_counter_or_a_time_that_is_no_number_begins_anew(state, broker, field, value):
    broker.declare("other")
    state.client.zadd(broker.keys.queue("other").ready, {b"x": 5})
    state.client.hset(state.keys.meta, field, value)
    assert state.rules() == {"not-a-number": 1, "tag-without-hash": 1}
    found = {violation.rule: violation for violation in state.check(repair=True)}
    assert (found["not-a-number"].detail, found["not-a-number"].repaired) == (f"{field}: {value}", True)
    assert state.check() == []
    state.publish("q", b"new")
    assert broker.bodies("q") == [b"urgent", b"ready", b"new"]


@pytest.mark.parametrize("field", ["expires", "ttl", "message_ttl", "limit", "ageing", "rate", "bytes"])
def test_a_number_of_the_arguments_that_is_none_is_named_and_stays(state, broker, field):
    broker.declare("other")
    state.client.zadd(broker.keys.queue("other").ready, {b"x": 5})
    state.client.hset(state.keys.meta, field, "x")
    for repair in (False, True):
        found = {violation.rule: violation for violation in state.check(repair=repair)}
        assert (found["argument-not-a-number"].detail, found["argument-not-a-number"].repaired) == (f"{field}: x", False)
        assert found["tag-without-hash"].repaired is repair
    assert state.client.hget(state.keys.meta, field) == b"x"


def test_a_publish_that_meets_a_text_for_a_number_names_queue_and_remedy(state):
    state.client.hset(state.keys.meta, "published", "x")
    with pytest.raises(DamagedRecord, match=r"script publish, one of the keys meta:{q}, .* check --repair"):
        state.publish("q", b"new")


def test_ids_stay_unique(state, broker):
    broker.declare("r")
    state.client.hset(broker.keys.queue("r").meta, "id", state.client.hget(state.keys.meta, "id"))
    assert state.rules() == {"duplicate-id": 1}
    state.repair()

    state.client.set(broker.keys.queue_ids, 0)
    assert state.rules() == {"id-counter-behind": 1}
    state.repair()
    broker.declare("s")
    assert state.check() == []


def test_keys_that_should_vanish_by_themselves_do(state):
    for key in (state.hash(b"staged.abc.1"), state.keys.producer + b"abc", state.broker.keys.client_wakeup("client")):
        state.client.hset(key, "body", "x")

    assert state.rules() == {"never-expires": 3}
    state.repair()
    assert 0 < state.client.pttl(state.keys.producer + b"abc") <= 900_000


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("key", ["meta:{q}", "binding:{e}", "trash:{q}", "message:{q}:"])
def test_a_foreign_key_keeps_nothing_else_from_being_looked_at(state, broker, key, repair):
    broker.declare("other")
    state.publish("other", b"lost")
    state.client.delete("queue:{other}")
    Bindings(broker.commands, broker.keys).bind("e", Binding("other", "k"))
    state.client.hset("exchanges", "e", encode_exchange(ExchangeRecord("direct", durable=True)))
    key = key.encode() + (state.ready if key.endswith(":") else b"")
    state.client.delete(key)
    state.client.set(key, "foreign")
    found = {violation.rule: violation for violation in state.check(repair=repair)}
    assert not found["wrong-type"].repaired
    assert found["no-place"].owner == "other"
    assert state.client.get(key) == b"foreign"


@pytest.mark.parametrize("field", ["score", "expires", "rank"])
def test_a_message_whose_field_is_no_number_keeps_no_other_from_being_looked_at(state, field):
    state.client.hset(state.hash(state.delayed), field, "x")
    state.client.hset(state.hash(state.ready), "owner", "somebody")
    assert "wrong-fields" in {violation.rule for violation in state.check() if violation.subject == state.ready.decode()}
