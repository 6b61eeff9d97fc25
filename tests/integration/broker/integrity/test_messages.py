"""Damage to messages: the check puts each into the one place and the form that it should have, and loses none."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.consumers.wakeup_waiter import FORWARDED_WAKEUP_MS
from celery_redis_plus.scripts import script
from tests.support.invariants import trashed

LEVEL = 10**13
FAR = 10**12


@pytest.mark.parametrize("place", ["ready", "delayed", "index", "dlx_outbox", "dead"])
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
    state.client.delete(state.keys.wakeup)

    assert state.rules() == {"no-place": 1}
    state.repair()
    assert state.place(tag) == [place]
    if place in {"ready", "delayed", "dead"}:
        # The score of a ready message is made of its priority and the time in its tag.
        assert state.client.zscore(key, tag) == pytest.approx(score, abs=2)
    assert state.client.exists(state.keys.wakeup) == (place == "ready")


def test_a_claimed_message_whose_place_was_lost_stays_with_its_consumer(state):
    state.client.delete(state.keys.index)
    state.repair()
    assert b"claimed" not in state.broker.bodies("q")
    assert state.broker.ack("q", state.claimed.decode()) == 1


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
        ("claimed", ["ready", "delayed", "dead", "dlx_outbox"], "index"),
        ("dead", ["ready"], "dead"),
        ("dead", ["index", "trash"], "dead"),
    ],
)
def test_a_message_in_several_sets_keeps_the_one_that_its_fields_name(state, of, more, kept):
    tag = getattr(state, of)
    for place in more:
        key = state.keys.trash_set(b"1") if place == "trash" else getattr(state.keys, place)
        state.client.zadd(key, {tag: 5})
    if "trash" in more:
        state.client.zadd(state.keys.trash, {"1": 1})

    assert state.rules() == {"several-places": 1}
    state.repair()
    assert state.place(tag) == [kept]
    assert tag not in trashed(state.client, state.keys)


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
        ("ready", {"score": "5", "owner": "somebody"}, []),
        ("delayed", {"owner": "somebody"}, []),
        ("delayed", {}, ["score"]),
        ("dead", {"owner": "somebody"}, ["score"]),
        ("claimed", {}, ["score"]),
        ("claimed", {}, ["owner"]),
        ("claimed", {}, ["claim"]),
        ("claimed", {}, ["claim", "owner", "score"]),
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


def test_a_wake_up_that_was_passed_on_may_expire_in_a_lasting_queue(state):
    for wakeup in (state.keys.wakeup, state.keys.schedule_wakeup):
        state.broker.commands.call(script("notify"), [wakeup], FORWARDED_WAKEUP_MS)
    assert state.rules() == {}
    state.client.pexpire(state.keys.wakeup, 2 * FORWARDED_WAKEUP_MS)
    assert state.rules() == {"expires": 1}


def test_what_belongs_to_a_transient_queue_gets_its_expiry_back(state):
    state.broker.declare("t", arguments={"x-expires": 60_000})
    state.publish("t", b"x")
    keys = state.broker.keys.queue("t")
    (tag,) = state.client.zrange(keys.ready, 0, -1)
    for key in (keys.message + tag, keys.meta):
        state.client.persist(key)

    assert state.rules() == {"never-expires": 2}
    state.repair()
    assert 0 < state.client.pttl(keys.meta) <= 60_000
    assert 60_000 < state.client.pttl(keys.message + tag) <= 3_600_000


def test_a_ready_message_with_a_ttl_is_listed_again(state):
    state.publish("q", b"x", life="+600000")
    (tag,) = state.client.zrange(state.keys.expiry, 0, -1)
    expires = state.client.zscore(state.keys.expiry, tag)
    for damage in (lambda: state.client.delete(state.keys.expiry), lambda: state.client.zadd(state.keys.expiry, {tag: 5})):
        damage()
        assert state.rules() == {"no-expiry": 1}
        state.repair()
        assert state.client.zscore(state.keys.expiry, tag) == expires


def test_ready_messages_without_a_wakeup_get_one(state):
    now_ms = state.client.time()[0] * 1000
    state.client.zadd(state.keys.consumers, {"someone": now_ms})
    state.client.delete(state.keys.wakeup)
    # A young message may be on its way to the first sweep.
    assert state.check() == []
    (score,) = state.client.zmscore(state.keys.ready, [state.urgent])
    state.client.zadd(state.keys.ready, {state.urgent: score - 20_000})

    assert state.rules() == {"no-wakeup": 1}
    state.repair()
    assert state.client.exists(state.keys.wakeup)
