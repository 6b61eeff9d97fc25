"""Each promise is broken on purpose, by a changed script or client on a real server, and the judge names it."""

import threading
from contextlib import ExitStack, contextmanager
from functools import wraps
from urllib.parse import urlsplit

import kombu
import pytest

from celery_redis_plus import scripts
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.transport.qos import QoS
from tests.support.clock import composed_with
from tests.support.inbox import Inbox, drain_all
from tests.support.judge.judging import PROMISES, assert_kept, judge
from tests.support.judge.promises import (
    at_least_once,
    broadcasts,
    dead_letters,
    deduplication,
    delays,
    lateness,
    limits,
    one_holder,
    order,
    priorities,
    repeats,
    routing,
    single_active,
)
from tests.support.judge.recorder import VARIABLE, note, recording
from tests.support.judge.records import DEPTH, DRAINED, History
from tests.support.judge.rules import Rules
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

PLACES = {"waiting": ("queue", "delayed"), "unacked": ("messages_index",)}


class Run:
    """A recorded run on a server. Each connection counts as a process of its own: they share no record of unacked messages."""

    def __init__(self, url, client, folder, stack):
        self.url, self.client, self.folder, self.stack = url, client, folder, stack
        self._connections = 0

    def connection(self, url=""):
        self._connections += 1
        options = {"visibility_timeout": 60 + self._connections}
        return self.stack.enter_context(kombu.Connection(url or self.url, transport_options=options))

    def inbox(self, *queues, **options):
        return Inbox(self.connection().channel(), *queues, **options)

    def publish(self, *bodies, queue="q", arguments=None, connection=None, **properties):
        producer = (connection or self.connection()).Producer()
        entity = kombu.Queue(queue, durable=True, queue_arguments=arguments)
        for body in bodies:
            producer.publish(body, routing_key=queue, declare=[entity], **properties)
            self.look(queue)

    def look(self, queue="q"):
        """Note how much is in each place of a queue."""
        depth = {what: sum(self.client.zcard(f"{place}:{{{queue}}}") for place in places) for what, places in PLACES.items()}
        note(DEPTH, queue=queue, detail=depth)
        if not any(depth.values()):
            note(DRAINED, queue=queue)

    def history(self):
        return History.read(self.folder)

    def broken(self, rules=None):
        return {violation.promise for violation in judge(self.history(), rules)}


@pytest.fixture
def run(broker_url, redis_client, tmp_path, monkeypatch):
    folder = tmp_path / "record"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    with recording(), ExitStack() as stack:
        yield Run(broker_url, redis_client, folder, stack)


@contextmanager
def changed(path, old, new):
    """Run the scripts with another text in one of their files."""
    text = scripts._read(path)  # noqa: SLF001 - as tests/support/clock.py
    assert old in text
    with composed_with({path: text.replace(old, new, 1)}):
        yield


def durable(name, **arguments):
    return kombu.Queue(
        name, durable=True, queue_arguments={f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    )


#: The promises that are broken here on purpose.
BROKEN = set()


def breaks(promise, rules=None):
    """Let a test, which changes a script or the client, end with a check that the judge names `promise`, and no other one."""
    BROKEN.add(promise)

    def ending_with_a_check(test):
        @wraps(test)
        def checked(*, run, **others):
            test(run=run, **others)
            assert run.broken(rules) == {promise.NAME}

        return checked

    return ending_with_a_check


def test_each_promise_of_the_judge_is_broken_on_purpose():
    assert set(PROMISES) == BROKEN


def test_a_run_without_a_change_breaks_no_promise(run):
    bounded, single = durable("bounded", max_length=5, max_unacked=3), durable("single", single_active_consumer=True)
    run.publish("a", "b", "c", queue="bounded", arguments=bounded.queue_arguments)
    run.publish("s", queue="single", arguments=single.queue_arguments)
    run.publish("soon", queue="later", headers={"x-delay": 200})
    run.publish("one", "two", queue="once", headers={"x-deduplication-id": "d"})
    inboxes = [run.inbox(bounded, single, "later", "once", prefetch=2) for _ in range(2)]
    drain_all(inboxes, 6)
    for queue in ("bounded", "single", "later", "once"):
        wait_until(lambda queue=queue: not run.client.exists(f"messages_index:{{{queue}}}"))
        run.look(queue)
    history = run.history()
    assert sorted(body for inbox in inboxes for body in inbox.bodies) == ["a", "b", "c", "one", "s", "soon"]
    assert {"publish", "confirmed", "delivered", "acked", "declared", "depth", "drained"} <= {one.kind for one in history}
    assert_kept(history)


@breaks(at_least_once)
def test_a_publish_that_stores_nothing_is_a_loss(run):
    stores = "redis.call('ZADD', KEYS[2], ARGV[2] * PRIORITY_BAND + time, tag)"
    with changed("publish_ordinary.lua", stores, ""):
        run.publish("m")
        run.inbox("q").rest()
        run.look()


@breaks(at_least_once)
def test_a_claim_that_stands_in_no_index_is_a_loss(run):
    writes = "if #claimed > 0 then redis.call('ZADD', index, unpack(claimed)) end"
    with changed("include/claim_messages.lua", writes, ""):
        run.publish("m")
        inbox = run.inbox("q", ack=False)
        inbox.drain(1)
        inbox.channel.session.abandon()
        run.inbox("q").rest()
        run.look()


@breaks(at_least_once, Rules(strict=True))
def test_an_ack_without_a_run_is_a_loss_where_each_message_is_a_task(run):
    run.publish("m")
    run.inbox("q").drain(1)
    wait_until(lambda: not run.client.exists("messages_index:{q}"))
    run.look()


@breaks(at_least_once, Rules(strict=True))
def test_a_queue_that_nobody_looks_at_is_a_loss_where_the_record_has_to_be_complete(run):
    run.publish("m")


PICKED, PACKED = (kombu.Queue(name, kombu.Exchange("x", "topic"), routing_key=f"{name}.#") for name in ("picked", "packed"))


def publish_to_an_exchange(run):
    """Declare two queues of a topic exchange, publish one message for the first, and consume both to their ends."""
    inbox = run.inbox(PICKED, PACKED)
    run.connection().Producer().publish("m", exchange=PICKED.exchange, routing_key="picked.today")
    inbox.rest()
    for queue in ("picked", "packed"):
        run.look(queue)


def routes_to(monkeypatch, *queues):
    """Let each exchange route to these queues, whatever its bindings say."""
    route = Bindings.route
    monkeypatch.setattr(Bindings, "route", lambda *arguments: queues if route(*arguments) else ())


@breaks(at_least_once)
def test_an_exchange_that_routes_to_no_queue_loses_its_messages(run, monkeypatch):
    routes_to(monkeypatch)
    publish_to_an_exchange(run)


@breaks(routing)
def test_an_exchange_that_routes_to_each_queue_knows_no_keys(run, monkeypatch):
    routes_to(monkeypatch, "picked", "packed")
    publish_to_an_exchange(run)


@pytest.fixture
def dropped_acks(monkeypatch):
    """A client that forgets acks; made before the recorder is."""
    settle = QoS.settle

    def drop_acks(qos, tag, settlement):
        if settlement is not Settlement.ACK:
            settle(qos, tag, settlement)

    monkeypatch.setattr(QoS, "settle", drop_acks)


@breaks(repeats)
def test_an_ack_that_is_dropped_is_a_repeat(dropped_acks, run):
    run.publish("m")
    first = run.inbox("q")
    first.drain(1)
    first.channel.close()
    run.inbox("q").drain(1)


@breaks(one_holder)
def test_a_claim_that_leaves_the_message_in_the_queue_makes_two_holders(run):
    takes = "redis.call('ZREMRANGEBYRANK', ready, 0, passed - 1)"
    with changed("include/claim_messages.lua", takes, ""):
        run.publish("m")
        holder = run.inbox("q", ack=False, prefetch=1)
        holder.drain(1)
        run.inbox("q", ack=False, prefetch=1).drain(1)


@breaks(order)
def test_a_publish_with_the_wrong_score_breaks_the_order(run):
    score = "ARGV[2] * PRIORITY_BAND + time, tag"
    with changed("publish_ordinary.lua", score, "ARGV[2] * PRIORITY_BAND + 9e12 - published, tag"):
        run.publish("a", "b")
        run.inbox("q").drain(2)


@breaks(priorities)
def test_a_publish_that_turns_priorities_round_lets_the_lowest_go_first(run):
    with changed("publish_ordinary.lua", "ARGV[2] * PRIORITY_BAND + time, tag", "(255 - ARGV[2]) * PRIORITY_BAND + time, tag"):
        for priority in (9, 1):
            run.publish(f"of priority {priority}", priority=priority)
        run.inbox("q").drain(2)


@breaks(limits)
def test_a_publish_that_counts_nothing_passes_the_limit(run):
    with changed("publish_bounded.lua", "local fits = free > 0", "free = 9\nlocal fits = free > 0"):
        run.publish("a", "b", "c", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})


@breaks(limits)
def test_claims_that_count_nothing_pass_the_limit_of_messages_in_work(run):
    with changed("claim_restricted.lua", "'max_unacked'", "'nothing'"):
        bounded = durable("q", max_unacked=1)
        run.publish("a", "b", arguments=bounded.queue_arguments)
        for inbox in [run.inbox(bounded, ack=False, prefetch=1) for _ in range(2)]:
            inbox.drain(1)
        run.look()


@breaks(limits)
def test_claims_that_count_nothing_pass_the_concurrency_of_a_group(run):
    with changed("include/groups.lua", ">= concurrency then return false end", ">= 9 then return false end"):
        grouped = kombu.Queue("q", durable=True, queue_arguments={"x-group-concurrency": 1})
        run.publish("a", "b", arguments=grouped.queue_arguments, headers={"x-message-group": "tenant"})
        for inbox in [run.inbox(grouped, ack=False, prefetch=1) for _ in range(2)]:
            inbox.drain(1)


@breaks(limits)
def test_claims_that_count_nothing_pass_the_concurrency_of_a_limiter(run):
    with changed("include/limiters.lua", "has + spent >= rule.concurrency and LOOK_AGAIN_MS", "has > 9 and LOOK_AGAIN_MS"):
        run.publish("a", "b", headers={"x-limiter": "storm:concurrency=1"})
        for inbox in [run.inbox("q", ack=False, prefetch=1) for _ in range(2)]:
            inbox.drain(1)


@breaks(single_active)
def test_two_active_consumers_are_not_single(run):
    with changed("claim_restricted.lua", "if record[5] ~= me then return answer('standby', -1, false) end", ""):
        single = durable("q", single_active_consumer=True)
        inboxes = [run.inbox(single, prefetch=1, ack=False) for _ in range(2)]
        run.publish("a", "b", arguments=single.queue_arguments)
        drain_all(inboxes, 2, 4)


@breaks(delays)
def test_a_sweep_that_promotes_too_much_delivers_early(run):
    due = "local due = due_in(queue.delayed)"
    every = "local due = redis.call('ZRANGEBYSCORE', queue.delayed, '-inf', '+inf', 'LIMIT', 0, 10)"
    with changed("sweep.lua", due, every):
        inbox = run.inbox("q")
        run.publish("in an hour", headers={"x-delay": 3_600_000})
        run.publish("soon", headers={"x-delay": 100})
        inbox.drain(2)


@breaks(lateness, Rules(late_s=1))
def test_an_enqueue_that_adds_to_a_delay_delivers_late(run):
    with changed("include/enqueue.lua", "eta = delay and due_after(delay) or", "eta = delay and due_after(delay) + 1500 or"):
        inbox = run.inbox("q")
        run.publish("soon", headers={"x-delay": 100})
        inbox.drain(1)


@breaks(deduplication)
def test_a_publish_that_knows_no_ids_is_doubled(run):
    with changed("include/deduplication.lua", "if not value then return false end", "do return false end"):
        run.publish("one", "two", headers={"x-deduplication-id": "d"})
        run.inbox("q").drain(2)


@breaks(deduplication)
def test_a_retry_that_is_stored_again_is_doubled(run, server):
    knows = "return tonumber(n) > tonumber(string.sub(last, 2)) and"
    address = urlsplit(run.url)
    with changed("include/idempotent_publish.lua", knows, "return true or"), Proxy(lambda: address.port) as proxy:
        connection = run.connection(proxy.url(int(address.path.strip("/"))))
        run.publish("first", connection=connection)
        proxy.lose_replies()
        publishing = threading.Thread(target=lambda: run.publish("m", connection=connection, retry=True))
        publishing.start()
        wait_until(lambda: run.client.zcard("queue:{q}") == 2)
        proxy.heal(resets=True)
        publishing.join(5)
        run.inbox("q").drain(3)


MORTAL = durable("q", delivery_limit=1, dead_letter_exchange="", dead_letter_routing_key="graves")


def consume_mortal(run, settle):
    """Publish a message, deliver it, settle it; then consume the dead letters."""
    run.publish("m", arguments=MORTAL.queue_arguments)
    inbox = run.inbox(MORTAL, "graves", ack=False)
    inbox.drain(1)
    settle(inbox.messages[0])
    return inbox


@breaks(dead_letters)
def test_a_rejection_that_forgets_its_message_is_no_dead_letter(run):
    buries = "dead_letter(queue, record, tag, text(whole(score)), ARGV[1], now)"
    with changed("reject.lua", buries, "redis.call('UNLINK', queue.message .. tag)"):
        inbox = consume_mortal(run, lambda message: message.reject())
        inbox.rest()
        for queue in ("q", "graves"):
            run.look(queue)


@breaks(dead_letters)
def test_a_requeue_that_knows_no_limit_fails_too_often(run):
    knows = "local rules = redis.call('HMGET', queue.meta, unpack(FAILURE_RULES))"
    with changed("requeue.lua", knows, "local rules = {}"):
        inbox = consume_mortal(run, lambda message: message.requeue())
        inbox.drain(2)
        inbox.messages[1].requeue()
        inbox.drain(3)


@pytest.fixture
def acks_that_reject(monkeypatch):
    """A client that rejects what is acked; made before the recorder is."""
    settle = QoS.settle

    def reject(qos, tag, settlement):
        settle(qos, tag, Settlement.REJECT if settlement is Settlement.ACK else settlement)

    monkeypatch.setattr(QoS, "settle", reject)


@breaks(dead_letters)
def test_an_ack_that_makes_a_dead_letter_has_no_reason(acks_that_reject, run):
    consume_mortal(run, lambda message: message.ack()).drain(2)


@breaks(broadcasts)
def test_a_broadcast_that_is_stored_twice_has_to_say_so(run):
    appended, appends = "if type(id) == 'table' then", "redis.call('XADD', stream, '*', 'head', head, 'payload', payload)"
    with changed("include/append_broadcast.lua", appended, f"{appends} {appended}"):
        news = kombu.Exchange("news", "fanout", durable=True)
        inbox = run.inbox(kombu.Queue("mine", news, durable=True))
        run.connection().Producer(exchange=news).publish("once")
        inbox.drain(2)


@breaks(broadcasts)
def test_a_broadcast_that_is_not_stored_is_a_gap(run):
    appends = "local id = redis.pcall('XADD'"
    with changed("include/append_broadcast.lua", appends, "local id = number == 2 and '0-1' or redis.pcall('XADD'"):
        news = kombu.Exchange("news", "fanout", durable=True)
        inbox = run.inbox(kombu.Queue("mine", news, durable=True))
        producer = run.connection().Producer(exchange=news)
        for number in range(3):
            producer.publish(str(number))
        inbox.drain(2)
