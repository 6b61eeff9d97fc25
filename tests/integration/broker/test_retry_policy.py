"""The function of the attempt is the same on the server as in Python."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.arguments.eta import PRIORITY_BAND_MS
from celery_redis_plus.broker.arguments.retry_policy import RetryPolicies, RetryPolicy
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import UnackedMessage
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from celery_redis_plus.scripts import compose, script
from tests.support.waiting import wait_until

CALL = """\
-- @include retry_delay
local delay = retry_delay(ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] or false)
if delay == nil then return -2 end
return delay == false and -1 or delay
"""
POLICIES = [
    "none",
    "constant first=700",
    "linear first=100 step=33 max=900",
    "exponential first=7 multiplier=1.7 max=100000 jitter=0.33",
    "exponential first=1000",
    "fibonacci first=13 max=500000 jitter=1",
    "list delays=3,200,0,9",
    "list delays=300,200 jitter=0.5",
    "exponential first=10 total=5000 jitter=0.1",
    "constant first=10 limit=4",
]


@pytest.mark.parametrize("text", POLICIES)
def test_lua_and_python_agree(text, redis_client):
    policy = RetryPolicy.parse(text)
    script = redis_client.register_script(compose(CALL))
    for attempt in (1, 2, 3, 4, 5, 9, 20, 60, 1000, 1001, 5000):
        for tag in ("0198abcdef0000000a.1", "x"):
            expected = policy.delay_ms(attempt, tag)
            assert script(args=[policy.record, attempt, tag]) == (-1 if expected is None else expected), (attempt, tag)


def test_a_failed_message_waits_as_its_queues_policy_says_and_dies_at_its_end(broker):
    policy = RetryPolicy("list", delays=(5000, 70_000))
    broker.declare("q", arguments={"x-retry-policy": str(policy)})
    broker.publish("q", b"x", rank=3)
    score = broker.client.zrange("queue:{q}", 0, 0, withscores=True)[0][1]
    for attempt in (1, 2):
        (message,) = broker.claim("q")
        seconds, microseconds = broker.client.time()
        before = seconds * 1000 + microseconds // 1000
        broker.settle(Settlement.REQUEUE, message)
        ((_, due),) = broker.client.zrange("delayed:{q}", 0, -1, withscores=True)
        assert abs(due - before - policy.delay_ms(attempt)) <= 50
        assert float(broker.client.hget("message:{q}:" + message.tag, "score")) == 3 * PRIORITY_BAND_MS + due
        # Its time comes.
        broker.client.zrem("delayed:{q}", message.tag)
        broker.client.zadd("queue:{q}", {message.tag: score})
        broker.client.hdel("message:{q}:" + message.tag, "score")
    (message,) = broker.claim("q")
    broker.settle(Settlement.REQUEUE, message)
    assert broker.client.zcard("dead:{q}") == 1
    assert broker.client.hget("message:{q}:" + message.tag, "reason") == b"retry_policy"


@pytest.mark.parametrize(
    ("text", "error", "delay"),
    [
        ("constant first=5; Gone: none; Busy: constant first=7", "Busy", 7),
        ("constant first=5; Gone: none; Busy: constant first=7", "Gone", -1),
        ("constant first=5; Gone: none; Busy: constant first=7", "Bus", 5),
        ("constant first=5; Gone: none; Busy: constant first=7", None, 5),
        ("Gone: none", "Busy", -2),
        ("Gone: none", None, -2),
        ("Gone: none", "Gone", -1),
    ],
)
def test_the_class_of_the_exception_decides(text, error, delay, redis_client):
    script = redis_client.register_script(compose(CALL))
    assert script(args=[RetryPolicies.parse(text).record, 1, "x", *([error] if error else [])]) == delay


def test_only_the_exception_of_the_last_delivery_decides(broker):
    broker.declare("q", arguments={"x-retry-policy": "list delays=0,0,0,600000; Busy: constant first=300s; Gone: none"})
    broker.publish("q", b"x", b"y")

    def fail(error):
        """Fail a delivery; return how long its message waits, in seconds, or its reason as a dead letter."""
        [message] = broker.claim("q", credit=1)
        unacked = UnackedMessage(message.tag, "q", message.claim, "holder")
        unacked.error = error and f"{error}: text\t"
        broker.acknowledger.settle([unacked], Settlement.REQUEUE)
        delay, reason = broker.client.hmget("message:{q}:" + message.tag, "delay", "reason")
        return reason or int(delay or 0) / 1000

    assert fail("Busy") == 300
    assert fail("Other") == 0
    broker.client.hset("message:{q}:" + broker.client.zrange("queue:{q}", 0, 0)[0].decode(), "error", "Gone: text\t")
    # No consumer has noted one this time.
    assert fail(None) == 0
    assert fail("Gone") == b"retry_policy"


def test_none_does_not_try_again(broker):
    broker.declare("q", arguments={"x-retry-policy": "none"})
    broker.publish("q", b"x")
    broker.settle(Settlement.RELEASE_UNSEEN, *broker.claim("q"))
    assert broker.queues.sizes("q").ready == 1
    (message,) = broker.claim("q")
    broker.settle(Settlement.REQUEUE, message)
    assert broker.client.zcard("dead:{q}") == 1
    assert broker.client.hget("message:{q}:" + message.tag, "reason") == b"retry_policy"


AT_ONCE = {"x-retry-policy": "constant first=1"}


def order_after(broker, put_back, returning, **arguments):
    """Return the bodies in their order when the first of two messages, `returning` in all, are due again."""
    broker.declare("q", arguments=AT_ONCE | arguments)
    broker.publish("q", b"first", b"second", rank=200)
    broker.publish("q", b"low", rank=255)
    broker.publish("q", b"high", rank=1)
    high, first = broker.claim("q", credit=2)
    put_back(high, first)
    limits = SweepLimits(30, None, 5, 1000.0)
    sweeper = Sweeper(broker.commands, broker.keys, ConsumedQueues(), name="s", limits=limits, forward=lambda _: None)
    sweeper.watch(["q"])

    def are_ready():
        sweeper.run_soon("q")
        sweeper.run()
        return broker.queues.sizes("q").ready == 2 + returning

    wait_until(are_ready)
    return broker.bodies("q")


@pytest.mark.parametrize("arguments", [{}, {"x-priority-ageing": 3_600_000}], ids=str)
def test_a_message_that_is_tried_again_stands_behind_those_that_came_meanwhile(broker, arguments):
    def put_back(high, first):
        broker.settle(Settlement.REQUEUE, first)
        broker.ack("q", high.tag)

    assert order_after(broker, put_back, 1, **arguments) == [b"second", b"first", b"low"]


def test_one_whose_consumer_was_lost_has_its_old_place(broker):
    def put_back(_high, _first):
        keys = broker.keys.queue("q").consumer_keys
        assert broker.commands.call(script("recover_sessions"), keys, "", 100, -1, 10, "holder")[0] == 2

    assert order_after(broker, put_back, 2) == [b"high", b"first", b"second", b"low"]
