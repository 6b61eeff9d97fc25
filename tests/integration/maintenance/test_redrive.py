"""Failed messages of queues with `x-redrive` go back to work by themselves."""

from __future__ import annotations

from types import SimpleNamespace

import kombu
import pytest

from celery_redis_plus import clock
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.arguments.redrive_rule import RedriveRule
from celery_redis_plus.broker.dead_letters.redriver import REDRIVES, Redriver, Walk
from celery_redis_plus.broker.dead_letters.store import DEAD_LETTER_PAGE, DeadLetters
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.leader import Leadership
from celery_redis_plus.maintenance.redrive import Redrive
from tests.support.inbox import Inbox, declare, publish
from tests.support.process_clock import ProcessClock
from tests.support.waiting import wait_until

KEYS = Keys().queue("q")


@pytest.fixture
def channel(connect):
    return connect().channel()


def queue_of(**arguments):
    return kombu.Queue("q", durable=True, queue_arguments=arguments)


def die(channel, *bodies):
    """Publish messages, and reject them."""
    publish(channel, "q", *bodies)
    for _ in bodies:
        channel.basic_get("q").reject()


def dead(redis_client):
    return redis_client.zcard(KEYS.dead)


def redriver_of(channel):
    session = channel.session
    return Redriver(session.commands, session.keys, DeadLetters(session.commands, session.keys))


def test_a_failed_message_is_redriven_so_often_and_then_stays(channel, redis_client):
    inbox = Inbox(channel, queue_of(**{"x-redrive": "after=10ms times=2"}), ack=False)
    publish(channel, "q", "x", headers={REDRIVES: 1})
    for redrives in (1, 2):
        inbox.drain(redrives)
        assert inbox.messages[-1].headers[REDRIVES] == redrives
        inbox.messages[-1].reject()
    wait_until(lambda: dead(redis_client) == 1)
    [letter] = DeadLetters(channel.session.commands, channel.session.keys).all("q")
    assert letter.headers[REDRIVES] == 2
    assert [entry["count"] for entry in letter.headers["x-death"]] == [1]
    assert redriver_of(channel).redrive("q", RedriveRule.parse("after=0 times=2"), Walk(), 10) == 0


def test_a_policy_redrives_what_lies_there_already(channel, redis_client, broker_url):
    declare(channel, "q")
    die(channel, *range(3))
    wait_until(lambda: dead(redis_client) == 3)
    assert REDRIVES not in next(DeadLetters(channel.session.commands, channel.session.keys).all("q")).headers
    with BrokerAdmin(broker_url) as admin:
        admin.set_policy("q", {"x-redrive": "after=0 rate=1000"}, "a test")
    inbox = Inbox(channel, "q")
    assert sorted(inbox.drain(3)) == [0, 1, 2]
    assert [message.headers[REDRIVES] for message in inbox.messages] == [1, 1, 1]


def test_the_rate_and_the_order_hold_page_by_page(channel, redis_client):
    declare(channel, "q")
    count = DEAD_LETTER_PAGE + 20
    die(channel, *range(count))
    wait_until(lambda: dead(redis_client) == count)
    redriver, walk, rule = redriver_of(channel), Walk(), RedriveRule.parse("after=0")
    assert [redriver.redrive("q", rule, walk, most) for most in (0, 3, 1000, 1000, 1000)] == [0, 3, DEAD_LETTER_PAGE, 17, 0]
    assert walk.at_end
    assert dead(redis_client) == 0


def test_a_long_rest_saves_up_no_more_than_a_second(channel, redis_client, monkeypatch):
    declare(channel, "q")
    die(channel, *range(20))
    wait_until(lambda: dead(redis_client) == 20)
    redriver, stepped = redriver_of(channel), ProcessClock()
    monkeypatch.setattr(redriver, "rules", lambda _: {"q": RedriveRule.parse("after=0 rate=3")})
    monkeypatch.setattr(clock, "now_s", stepped)
    redrive = Redrive(redriver, SimpleNamespace(queues=["q"]), Leadership(10.0))
    redrive.run()
    assert dead(redis_client) == 19
    stepped.advance(1800)
    redrive.run()
    assert dead(redis_client) == 16


def test_what_stays_is_passed_once_and_holds_up_nothing(channel, redis_client):
    declare(channel, "q")
    die(channel, *range(DEAD_LETTER_PAGE + 5))
    wait_until(lambda: dead(redis_client) == DEAD_LETTER_PAGE + 5)
    # All but the last ones were cancelled, and all have died in the same millisecond.
    tags = redis_client.zrange(KEYS.dead, 0, -1)
    for number, tag in enumerate(tags):
        redis_client.zadd(KEYS.dead, {tag: 1000})
        redis_client.hset(KEYS.message + tag, mapping={"died": 1000, **({"reason": "cancelled"} if number < 103 else {})})
    redriver, walk, rule = redriver_of(channel), Walk(), RedriveRule.parse("after=1m")
    assert [redriver.redrive("q", rule, walk, 100) for _ in range(3)] == [0, 2, 0]
    assert dead(redis_client) == 103
    assert walk.stayed == 103


def test_a_message_that_cannot_be_read_stays(channel, redis_client):
    declare(channel, "q")
    die(channel, "one", "two")
    wait_until(lambda: dead(redis_client) == 2)
    first, _ = redis_client.zrange(KEYS.dead, 0, -1)
    redis_client.delete(KEYS.message + first)
    redis_client.hset(KEYS.meta, "redrive", "after=0 often")
    redriver = redriver_of(channel)
    assert redriver.rules(["q", "none"]) == {}
    redis_client.hset(KEYS.meta, "redrive", "after=0")
    assert redriver.redrive("q", redriver.rules(["q"])["q"], Walk(), 10) == 1


@pytest.mark.parametrize(
    "value", ["", "10m", "after=soon", "after=1m times=0", "after=1m times=x", "after=1m rate=fast", "after=1m often=1", 5,
              "times=3", "after=1m after=2m"],
)  # fmt: skip
def test_what_it_cannot_be_is_refused(value, channel):
    with pytest.raises(InvalidArgument, match=r"argument 'x-redrive' of queue 'q' is .*; allowed is a text such as 'after=10m"):
        declare(channel, "q", arguments={"x-redrive": value})


def test_it_contradicts_a_dead_letter_exchange_and_a_transient_queue(channel):
    redrive = {"x-redrive": "after=1m"}
    with pytest.raises(InvalidArgument, match="'x-redrive' of queue 'q' is 'after=1m' beside 'x-dead-letter-exchange'"):
        declare(channel, "q", arguments={**redrive, "x-dead-letter-exchange": ""})
    with pytest.raises(InvalidArgument, match="'x-redrive' of queue 'q' is 'after=1m' and the queue is transient"):
        declare(channel, "q", arguments=redrive, auto_delete=True)
