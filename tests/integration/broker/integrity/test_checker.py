"""The check as a whole: it counts what it looks at, keeps to one queue where it is told to, and mends any number."""

from __future__ import annotations

from celery_redis_plus.broker.integrity import RULES, Checker


def test_a_sound_server_has_no_violation_and_is_counted(state):
    checker = Checker(state.broker.commands, state.broker.keys, state.broker.queues, settle_s=0)
    assert list(checker.run()) == []
    assert (checker.account.queues, checker.account.messages) == (1, 5)


def test_one_queue_can_be_checked_alone(state):
    for queue in ("q", "other"):
        state.broker.declare(queue)
        state.client.zadd(state.broker.keys.queue(queue).ready, {b"x": 5})
    assert [violation.owner for violation in state.check(queue="other")] == ["other"]


def test_all_damage_at_once_is_found_and_repaired_in_small_pages(state):
    for number in range(300):
        state.publish("q", b"%d" % number, number % 10)
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
