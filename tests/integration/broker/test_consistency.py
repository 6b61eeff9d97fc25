"""The check finds every kind of damage on a real server, says what it is, repairs it, and loses no message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from celery_redis_plus.broker.attempt import Attempt
from celery_redis_plus.broker.consistency import RULES, Checker
from celery_redis_plus.broker.holding import Settlement
from celery_redis_plus.broker.routing import Binding
from celery_redis_plus.message import Outgoing
from tests.support.invariants import violations

LEVEL = 10**13
FAR = 10**12


@dataclass
class State:
    """A queue with a message in every place."""

    broker: object
    ready: bytes
    urgent: bytes
    delayed: bytes
    claimed: bytes
    dead: bytes

    @property
    def client(self):
        return self.broker.client

    @property
    def keys(self):
        return self.broker.keys.queue("q")

    def hash(self, tag):
        return self.keys.message + tag

    def check(self, *, repair=False, queue=None, **options):
        checker = Checker(self.broker.wire, self.broker.keys, self.broker.queues, repair=repair, settle_s=0, **options)
        return list(checker.run(queue))

    def rules(self, **options):
        return Counter(violation.rule for violation in self.check(**options))

    def repair(self):
        """Repair; what was found before and during the repair agrees, and nothing is left to be found."""
        found = self.check()
        mended = self.check(repair=True)
        assert {v.rule for v in mended} >= {v.rule for v in found}
        assert all(violation.repaired for violation in mended)
        assert self.check() == []
        assert violations(self.client, self.broker.keys) == []

    def place(self, tag):
        names = ("ready", "delayed", "index", "dying", "dead")
        return [name for name in names if self.client.zscore(getattr(self.keys, name), tag) is not None]


def publish(broker, queue, body, priority=0, **more):
    envelope = b'{"properties":{"priority":%d}}' % priority
    broker.publisher.to_queue(queue, Outgoing(envelope, body, 255 - priority, **more), Attempt())


@pytest.fixture
def state(broker):
    broker.declare("q")
    for body in (b"claimed", b"dead"):
        publish(broker, "q", body, 255)
    claimed, dead = broker.claim("q")
    broker.settle(Settlement.REJECT, dead)
    publish(broker, "q", b"ready")
    publish(broker, "q", b"urgent", 9)
    publish(broker, "q", b"delayed", eta=4 * FAR)
    client, keys = broker.client, broker.keys.queue("q")
    urgent, ready = client.zrange(keys.ready, 0, -1)
    (delayed,) = client.zrange(keys.delayed, 0, -1)
    state = State(broker, ready, urgent, delayed, claimed.tag.encode(), dead.tag.encode())
    assert state.check() == []
    return state


def test_a_sound_server_has_no_violation_and_is_counted(state):
    checker = Checker(state.broker.wire, state.broker.keys, state.broker.queues, settle_s=0)
    assert list(checker.run()) == []
    assert (checker.account.queues, checker.account.messages) == (1, 5)


@pytest.mark.parametrize("place", ["ready", "delayed", "index", "dying", "dead"])
def test_a_tag_without_a_message_is_removed_and_counted(state, place):
    state.client.zadd(getattr(state.keys, place), {b"00000000001deadbeef.1": 5})

    (violation,) = state.check()
    assert (violation.rule, violation.owner, violation.subject) == ("tag-without-hash", "q", "00000000001deadbeef.1")
    state.repair()
    assert state.client.hget(state.keys.meta, "vanished") == b"1"


@pytest.mark.parametrize(
    ("of", "place"), [("ready", "ready"), ("urgent", "ready"), ("delayed", "delayed"), ("claimed", "index"), ("dead", "dead")]
)
def test_a_message_in_no_set_goes_back_to_its_place(state, of, place):
    tag, key = getattr(state, of), getattr(state.keys, place)
    score = state.client.zscore(key, tag)
    state.client.zrem(key, tag)
    state.client.delete(state.keys.bell)

    assert state.rules() == {"no-place": 1}
    state.repair()
    assert state.place(tag) == [place]
    if place in {"ready", "delayed", "dead"}:
        # The score of a ready message is made of its priority and the time in its tag.
        assert state.client.zscore(key, tag) == pytest.approx(score, abs=2)
    assert state.client.exists(state.keys.bell) == (place == "ready")


def test_a_claimed_message_whose_place_was_lost_stays_with_its_consumer(state):
    state.client.delete(state.keys.index)
    state.repair()
    assert b"claimed" not in state.broker.bodies("q")
    assert state.broker.settler.ack_now("q", [state.claimed.decode()]) == 1


def test_a_lost_score_is_made_anew_also_where_low_priorities_come_first(state):
    state.client.zrem(state.keys.ready, state.urgent)
    state.check(repair=True, low_first=True)
    assert state.client.zscore(state.keys.ready, state.urgent) // LEVEL == 9


@pytest.mark.parametrize(
    ("of", "more", "kept"),
    [
        ("ready", ["delayed"], "ready"),
        ("ready", ["index"], "ready"),
        ("ready", ["dead", "index", "delayed"], "ready"),
        ("ready", ["trash"], "ready"),
        ("delayed", ["ready"], "delayed"),
        ("delayed", ["index", "dead"], "delayed"),
        ("claimed", ["ready"], "index"),
        ("claimed", ["ready", "delayed", "dead", "dying"], "index"),
        ("dead", ["ready"], "dead"),
        ("dead", ["index", "trash"], "dead"),
    ],
)
def test_a_message_in_several_sets_keeps_the_one_that_its_fields_name(state, of, more, kept):
    tag = getattr(state, of)
    for place in more:
        state.client.zadd(getattr(state.keys, place), {tag: 5})

    assert state.rules() == {"several-places": 1}
    state.repair()
    assert state.place(tag) == [kept]
    assert state.client.zscore(state.keys.trash, tag) is None


def test_where_the_fields_say_nothing_the_soonest_delivery_wins(state):
    state.client.zrem(state.keys.ready, state.ready)
    state.client.zadd(state.keys.dead, {state.ready: 1})
    state.client.zadd(state.keys.index, {state.ready: FAR})
    state.repair()
    assert state.place(state.ready) == ["ready"]
    assert state.broker.bodies("q") == [b"urgent", b"ready"]


def test_a_hash_without_any_message_is_removed_and_counted(state):
    for tag in (state.ready, b"00000000001deadbeef.1"):
        state.client.delete(state.hash(tag))
        state.client.hset(state.hash(tag), "failed", 1)

    assert state.rules() == {"no-payload": 2}
    state.repair()
    assert state.client.hget(state.keys.meta, "vanished") == b"2"
    assert not state.client.exists(state.hash(state.ready))


def test_a_body_that_has_lost_its_headers_is_reported_and_left_alone(state):
    state.client.hdel(state.hash(state.ready), "payload")
    state.client.hset(state.hash(state.ready), "body", "x")

    assert state.rules(repair=True) == {"no-headers": 1}
    assert not state.check(repair=True)[0].repaired
    assert state.client.hget(state.hash(state.ready), "body") == b"x"


@pytest.mark.parametrize(
    ("of", "wrong", "missing"),
    [
        ("ready", {"score": "5"}, []),
        ("ready", {"score": "5", "by": "somebody"}, []),
        ("delayed", {"by": "somebody"}, []),
        ("delayed", {}, ["score"]),
        ("dead", {"by": "somebody"}, ["score"]),
        ("claimed", {}, ["score"]),
        ("claimed", {}, ["by"]),
        ("claimed", {}, ["claim"]),
        ("claimed", {}, ["claim", "by", "score"]),
    ],
)
def test_fields_that_do_not_fit_the_place_are_mended(state, of, wrong, missing):
    tag = getattr(state, of)
    if wrong:
        state.client.hset(state.hash(tag), mapping=wrong)
    if missing:
        state.client.hdel(state.hash(tag), *missing)

    assert state.rules() == {"wrong-fields": 1}
    state.repair()
    orphaned = of == "claimed" and missing != ["score"]
    assert state.place(tag) == ["ready" if orphaned else {"claimed": "index"}.get(of, of)]


@pytest.mark.parametrize(("of", "place"), [("ready", "ready"), ("delayed", "delayed"), ("claimed", "index"), ("dead", "dead")])
@pytest.mark.parametrize("position", ["inf", "-5", "1e17"])
def test_a_position_that_nothing_can_have_is_made_anew(state, of, place, position):
    state.client.zadd(getattr(state.keys, place), {getattr(state, of): position})

    assert state.rules() == {"wrong-position": 1}
    state.repair()
    assert state.place(getattr(state, of)) == [place]


def test_no_message_of_a_lasting_queue_expires(state):
    state.client.pexpire(state.hash(state.ready), 60_000)
    state.client.pexpire(state.keys.ready, 60_000)
    state.client.pexpire(state.keys.meta, 60_000)

    assert state.rules() == {"expires": 3}
    state.repair()


def test_what_belongs_to_a_transient_queue_gets_its_expiry_back(state):
    state.broker.declare("t", arguments={"x-expires": 60_000})
    publish(state.broker, "t", b"x")
    keys = state.broker.keys.queue("t")
    (tag,) = state.client.zrange(keys.ready, 0, -1)
    for key in (keys.message + tag, keys.meta):
        state.client.persist(key)

    assert state.rules() == {"never-expires": 2}
    state.repair()
    assert 0 < state.client.pttl(keys.message + tag) <= 60_000


def test_a_ready_message_with_a_ttl_is_listed_again(state):
    publish(state.broker, "q", b"x", life="+600000")
    (tag,) = state.client.zrange(state.keys.expiry, 0, -1)
    expires = state.client.zscore(state.keys.expiry, tag)
    for damage in (lambda: state.client.delete(state.keys.expiry), lambda: state.client.zadd(state.keys.expiry, {tag: 5})):
        damage()
        assert state.rules() == {"no-expiry": 1}
        state.repair()
        assert state.client.zscore(state.keys.expiry, tag) == expires


def test_a_lost_record_is_written_anew_and_the_next_declaration_replaces_it(broker, state):
    arguments = {"x-max-priority": 5, "x-message-ttl": 600_000}
    broker.declare("r", arguments=arguments)
    publish(broker, "r", b"x", life="")
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
    state.client.delete(state.broker.keys.queues, state.broker.keys.tended)

    assert state.rules() == {"unlisted": 4}
    state.repair()
    assert state.client.zscore(state.broker.keys.queues, "q") == float("inf")
    assert state.client.zscore(state.broker.keys.queues, "t") < float("inf")


def test_what_a_transient_queue_left_is_cleared_away_when_no_janitor_did(state):
    broker, client = state.broker, state.client
    broker.declare("t", arguments={"x-expires": 60_000})
    publish(broker, "t", b"x")
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


@pytest.mark.parametrize("kind", ["bell", "timer", "trash"])
def test_keys_of_no_queue_are_removed_without_making_one(state, kind):
    state.client.zadd(getattr(state.broker.keys.queue("gone"), kind), {"work": 0})

    assert state.rules() == {"orphan-keys": 1}
    state.repair()
    assert not state.client.keys("*{gone}*")
    assert state.client.zscore(state.broker.keys.queues, "gone") is None


def test_dead_bindings_are_removed_and_live_ones_stay(state, broker):
    from celery_redis_plus.broker.bindings import Bindings
    from celery_redis_plus.broker.exchange_record import ExchangeRecord

    bindings = Bindings(broker.wire, broker.keys)
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
    state.client.hset(broker.keys.binding("e"), mapping={"version": 1, "no json": ""})
    state.client.hset(broker.keys.queue("r").meta, "arguments", "no json")
    state.client.hset(broker.keys.queue("new").meta, "format", 99)
    before = state.client.hgetall(broker.keys.queue("new").meta)

    assert set(state.rules(repair=True)) == {"unreadable-binding", "unreadable-record", "newer-format"}
    assert state.client.hgetall(broker.keys.queue("new").meta) == before


def test_a_key_of_another_type_is_named_and_stays(state):
    state.client.delete(state.keys.dead)
    state.client.set(state.keys.dead, "somebody's")

    (violation,) = state.check(repair=True)
    assert (violation.rule, violation.subject, violation.repaired) == ("wrong-type", "dead:{q}", False)
    assert state.client.get(state.keys.dead) == b"somebody's"


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
    for key in (state.hash(b"staged.abc.1"), state.keys.producer + b"abc", state.broker.keys.wake("client")):
        state.client.hset(key, "body", "x")

    assert state.rules() == {"never-expires": 3}
    state.repair()
    assert 0 < state.client.pttl(state.keys.producer + b"abc") <= 900_000


def test_ready_messages_that_nobody_would_notice_are_rung_for(state):
    state.client.zadd(state.keys.consumers, {"someone": 2 * FAR})
    state.client.delete(state.keys.bell)
    # A young message may be on its way to the first sweep.
    assert state.check() == []
    (score,) = state.client.zmscore(state.keys.ready, [state.urgent])
    state.client.zadd(state.keys.ready, {state.urgent: score - 20_000})

    assert state.rules() == {"no-bell": 1}
    state.repair()
    assert state.client.exists(state.keys.bell)


def test_one_queue_can_be_checked_alone(state):
    for queue in ("q", "other"):
        state.broker.declare(queue)
        state.client.zadd(state.broker.keys.queue(queue).ready, {b"x": 5})
    assert [violation.owner for violation in state.check(queue="other")] == ["other"]


def test_all_damage_at_once_is_found_and_repaired_in_small_pages(state):
    for number in range(300):
        publish(state.broker, "q", b"%d" % number, number % 10)
    tags = state.client.zrange(state.keys.ready, 0, -1)
    for number, tag in enumerate(tags[:250]):
        if number % 5 == 0:
            state.client.zrem(state.keys.ready, tag)
        elif number % 5 == 1:
            state.client.zadd(state.keys.delayed, {tag: 5})
        elif number % 5 == 2:
            state.client.hset(state.hash(tag), "score", 5)
        elif number % 5 == 3:
            state.client.zadd(state.keys.ready, {b"nothing%d" % number: 5})
        else:
            state.client.pexpire(state.hash(tag), 60_000)

    found = state.rules(batch=7)
    assert found == {"no-place": 50, "several-places": 50, "wrong-fields": 50, "tag-without-hash": 50, "expires": 50}
    assert len(state.check(repair=True, batch=7)) == 250
    assert state.check() == []
    assert len(state.broker.bodies("q", credit=500)) == 302


def test_every_rule_has_a_meaning_and_no_two_names_are_alike():
    assert all(rule.meaning for rule in RULES.values())
