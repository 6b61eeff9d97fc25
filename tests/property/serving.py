"""Rules for consumers that come, die, freeze, and are cancelled, and what has to hold whatever they do."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.consumers.acks import Acknowledger
from celery_redis_plus.broker.consumers.pauses import Pausing
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import UnackedMessage, UnackedMessages
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.publisher import Publisher
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import AccessRefused
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.sweeper import SWEEP_VALUES
from celery_redis_plus.options import Options
from celery_redis_plus.scripts import script
from celery_redis_plus.stored_message import Outgoing
from tests.property.members import BEAT_MS, LIFE_MS, LOST_MS, POLLING_MS, RESUMING_MS, Member, Process
from tests.support.clock import ServerClock
from tests.support.invariants import violations

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.connection.address import Address

START_MS = 1_767_225_600_000
SWEEP_MS, GRACE_MS, LONGEST_GAP_MS = 4_000, 10_000, 20_000
MAX_UNACKED = 2
QUEUES = {
    "single": {"x-single-active-consumer": True},
    "open": {},
    "limited": {"x-max-unacked": MAX_UNACKED},
}
#: Milliseconds within which a message is delivered that somebody may take: after a death, and where all deaths are long past.
BOUND_MS = BEAT_MS + RESUMING_MS + LIFE_MS + SWEEP_MS + 1_000
SOON_MS = 2_000
queues = st.sampled_from(("single", "single", "open", "open", "limited"))


@dataclass
class Comer:
    """A consumer that has to wait until others are off the list."""

    process: Process
    queue: str
    how: dict[str, int]
    since: int


class Serving(RuleBasedStateMachine):
    """The server, and the processes that consume. `client` and `address` are set by the test."""

    client: redis.Redis
    address: Address

    def __init__(self) -> None:
        super().__init__()
        self.client.flushdb()
        Process.numbers = itertools.count(1)
        #: The processes' clock, in ms; the server's is `clock`.
        self.now = START_MS
        self.clock = ServerClock(self.client, START_MS)
        self.keys = Keys("")
        self.commands = CommandConnection(Connector(self.address, Options()), "model", timeout=5)
        self.acknowledger = Acknowledger(self.commands, self.keys, UnackedMessages(), dead_letter_max=1000, delivery_limit=None)
        self.queues = Queues(self.commands, self.keys, transient_ttl_s=3600)
        self.publisher = Publisher(self.commands, self.keys, dedup_window_s=900, on_missing=self.queues.revive)
        self.pausing = Pausing(self.commands, self.keys)
        self.processes: list[Process] = []
        self.comers: list[Comer] = []
        self.swept_at = 0
        #: queue -> since when a message waits that somebody could take.
        self.waiting: dict[str, int] = {}

    @initialize()
    def declare(self) -> None:
        self.declared = {
            name: QueueArguments.parse(name, durable=True, arguments=arguments) for name, arguments in QUEUES.items()
        }
        for name, arguments in self.declared.items():
            self.queues.declare(name, arguments)

    # -- the model's eyes -------------------------------------------------------------------------------------------------

    def members(self, queue: str | None = None) -> list[Member]:
        found = [member for process in self.processes for member in process.members]
        return [member for member in found if queue in (None, member.consumer.queue)]

    def serving(self, queue: str) -> list[Member]:
        return [member for member in self.members(queue) if member.works]

    def meta(self, queue: str, name: str) -> bytes | None:
        found: bytes | None = self.client.hget(self.keys.queue(queue).meta, name)
        return found

    def could_take(self, queue: str) -> bool:
        """Return whether a message waits that a running consumer may get: for sure, whoever may be the chosen one."""
        keys, serving = self.keys.queue(queue), self.serving(queue)
        if not self.client.exists(keys.ready) or self.meta(queue, "paused") or not any(m.credit > 0 for m in serving):
            return False
        if queue == "limited" and self.client.zcard(keys.index) >= MAX_UNACKED:
            return False
        alone = queue == "single" or any(m.consumer.exclusive for m in self.members(queue))
        return not alone or all(m.credit > 0 for m in serving)

    def deaths_are_past(self, queue: str, since: int) -> bool:
        """Return whether whoever is on the list and does not run was lost before `since`."""
        return all(
            m.process.died_at is not None and m.process.died_at + LOST_MS < since
            for m in self.members(queue)
            if not m.process.runs and not m.cancelled
        )

    # -- what processes do by themselves ----------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Let all running processes do what they have reason to, until none has; then look."""
        for _ in range(200):
            if not any([self.do_duties(process) for process in self.processes] + [self.wake_one(), self.claim_one()]):
                break
        else:
            raise AssertionError("the consumers do not come to rest")
        for member in self.members():
            member.rested = member.works and member.credit > 0 and not member.hot
        self.look()

    def do_duties(self, process: Process) -> bool:
        if not process.runs:
            return False
        if process.lease_at <= self.now:
            process.keep_leases(self.now)
        did = False
        if process.beat_at <= self.now:
            process.beat(self.now)
            did = True
        if process.check_at <= self.now:
            process.check(self.now)
            did = True
        for lost in self.processes if process.leads else ():
            if lost.died_at is not None and lost.died_at + LOST_MS <= self.now and not lost.recovered:
                process.recover(lost)
                did = True
        return did

    def wake_one(self) -> bool:
        """Send one wakeup that is there: the server wakes the one that has waited longest, even a process that is halted."""
        waiting = [m for m in self.members() if m.process.died_at is None and m.credit > 0 and not m.hot]
        if not waiting:
            return False
        waiting.sort(key=lambda m: m.waits_since)
        taken = self.client.execute_command("ZMPOP", len(waiting), *[m.wakeup for m in waiting], "MIN")
        if taken is not None:
            next(m for m in waiting if m.wakeup == taken[0]).hot = True
        return taken is not None

    def claim_one(self) -> bool:
        for member in self.members():
            due = member.later_at is not None and member.later_at <= self.now
            polls = member.waits_since + POLLING_MS <= self.now
            if member.works and member.credit > 0 and (member.hot or due or polls):
                self.took(member, member.process.claim(member, self.now))
                return True
        return False

    def took(self, member: Member, taken: list[object]) -> None:
        queue = member.consumer.queue
        if not taken:
            return
        self.waiting.pop(queue, None)
        if queue == "single":
            assert self.meta(queue, "active") == member.consumer.id.encode(), f"{member} took, and is not the active one"
        higher = [m for m in self.serving(queue) if m.consumer.priority > member.consumer.priority and m.rested]
        assert queue == "single" or not higher, f"{member} took before {higher}"

    def sweep(self) -> None:
        self.swept_at = self.now
        keys = [key for queue in QUEUES for key in self.keys.queue(queue).state_keys]
        self.commands.call(
            script("sweep"), keys, "sweeper", 6_000, SWEEP_MS, 500, 1, GRACE_MS, LONGEST_GAP_MS, -1, 1000,
            10**12,
        )[:SWEEP_VALUES]  # fmt: skip

    def pass_time(self, ms: int) -> None:
        end = self.now + ms
        while self.now < end:
            times = [end, self.swept_at + SWEEP_MS, self.now + 1_000]
            times += [at for p in self.processes if p.runs for at in (p.beat_at, p.check_at, p.lease_at)]
            times += [m.later_at for m in self.members() if m.works and m.later_at is not None]
            step = min(at for at in times if at > self.now) - self.now
            self.now += step
            self.clock.advance(step)
            self.let_lists_expire(step)
            if self.swept_at + SWEEP_MS <= self.now and any(p.runs for p in self.processes):
                self.sweep()
            self.try_again()
            self.come_to_rest()

    def let_lists_expire(self, ms: int) -> None:
        """The server lets keys expire by its own clock, not by the test's."""
        for queue in QUEUES:
            key = self.keys.queue(queue).consumers
            left = self.client.pttl(key)
            if left >= 0:
                self.client.pexpire(key, max(0, left - ms))

    def try_again(self) -> None:
        for comer in list(self.comers):
            self.comers.remove(comer)
            if comer.process.runs:
                self.let_join(comer)

    def let_join(self, comer: Comer) -> None:
        refused = ""
        try:
            comer.process.join(comer.queue, self.declared[comer.queue], **comer.how)
        except AccessRefused as error:
            refused = str(error)
        if refused and not self.serving(comer.queue) and self.deaths_are_past(comer.queue, comer.since):
            # As `Session.have_ended` tells it.
            self.comers.append(comer)
            assert self.now - comer.since <= SOON_MS, f"a consumer of {comer.queue} still waits for those who are dead: {refused}"

    # -- what has to hold -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        for queue in QUEUES:
            self.what_can_be_taken_is_taken_in_time(queue)
            self.whom_a_publisher_wakes_is_there(queue)
        believers = [
            m for m in self.members("single") if m.works and m.believes and m.activations == self.meta("single", "activations")
        ]
        assert len(believers) <= 1, f"{believers} believe that they are the active one"
        assert self.client.zcard(self.keys.queue("limited").index) <= MAX_UNACKED
        for process in self.processes:
            if process.runs:
                assert not self.lost_by(process), f"messages of the living {process.session} were taken: {self.lost_by(process)}"

    @invariant()
    def nothing_is_violated(self) -> None:
        assert violations(self.client, self.keys) == []

    def what_can_be_taken_is_taken_in_time(self, queue: str) -> None:
        if not self.could_take(queue):
            self.waiting.pop(queue, None)
            return
        since = self.waiting.setdefault(queue, self.now)
        bound = SOON_MS if self.deaths_are_past(queue, since) else BOUND_MS
        assert self.now - since <= bound, (
            f"a message of {queue} has waited for {self.now - since} ms beside {self.serving(queue)}"
        )

    def whom_a_publisher_wakes_is_there(self, queue: str) -> None:
        """Look once all that do not run are off the list."""
        names = {name.decode() for name in self.client.zrange(self.keys.queue(queue).consumers, 0, -1)}
        serving = self.serving(queue)
        open_ones = [m for m in serving if m.rested]
        if not open_ones or names != {m.consumer.id for m in serving} or self.meta(queue, "paused"):
            return
        wakeup = self.meta(queue, "wakeup") or self.keys.queue(queue).wakeup
        if queue == "single":
            assert wakeup in {m.wakeup for m in serving}, f"{queue}: publishers notify {wakeup!r}, and nobody listens"
        elif all(m.credit > 0 for m in serving):
            assert wakeup in {m.wakeup for m in open_ones}, f"{queue}: publishers notify {wakeup!r}, and nobody listens"

    def lost_by(self, process: Process) -> list[str]:
        lost = []
        for member in process.members:
            keys = self.keys.queue(member.consumer.queue)
            for claimed in member.held:
                claim, owner = self.client.hmget(keys.message + claimed.tag.encode(), "claim", "owner")
                if (claim, owner) != (b"%d" % claimed.claim, process.session.encode()):
                    lost.append(claimed.tag)
        return lost

    # -- rules ------------------------------------------------------------------------------------------------------------

    @rule(
        queue=queues,
        priority=st.sampled_from((0, 0, 0, 5, 10)),
        exclusive=st.sampled_from((False, False, False, True)),
        prefetch=st.integers(1, 3),
        new=st.booleans(),
    )
    def a_consumer_comes(self, queue: str, priority: int, exclusive: bool, prefetch: int, new: bool) -> None:
        running = [process for process in self.processes if process.runs]
        if len(self.serving(queue)) >= 4:
            return
        if new or not running:
            self.processes.append(Process(self.commands, self.keys, self.client, self.now))
        how = {"priority": priority, "exclusive": exclusive, "prefetch": prefetch}
        self.let_join(Comer((self.processes if new or not running else running)[-1], queue, how, self.now))
        self.come_to_rest()

    @rule(queue=queues, count=st.integers(2, 3))
    def several_come_and_get_work(self, queue: str, count: int) -> None:
        for _ in range(count):
            self.a_consumer_comes(queue, 0, exclusive=False, prefetch=1, new=True)
        self.publish(queue, count)

    @rule(how=st.sampled_from(("cancelled", "cancelled", "dies")))
    def the_active_one_goes(self, how: str) -> None:
        for member in self.serving("single"):
            if self.meta("single", "active") == member.consumer.id.encode():
                if how == "dies":
                    member.process.died_at = self.now
                else:
                    self.cancel(member)
        self.come_to_rest()

    @rule(queue=queues, count=st.integers(1, 3))
    def publish(self, queue: str, count: int) -> None:
        for _ in range(count):
            self.publisher.to_queue(queue, Outgoing(b"{}", b"x", rank=0, eta=0), PublishAttempt())
            self.come_to_rest()

    @precondition(lambda self: self.members())
    @rule(data=st.data())
    def somebody_settles(self, data: st.DataObject) -> None:
        holding = [m for m in self.members() if m.process.runs and m.held]
        if not holding:
            return
        member = data.draw(st.sampled_from(holding), label="consumer")
        claimed = member.held.pop(0)
        self.acknowledger.settle(
            [UnackedMessage(claimed.tag, claimed.queue, claimed.claim, member.process.session)], Settlement.ACK
        )
        keys = self.keys.queue(claimed.queue)
        if claimed.queue == "limited":
            self.commands.call(script("notify_if_ready"), [keys.ready, keys.wakeup, keys.meta])
        self.come_to_rest()

    @precondition(lambda self: self.members())
    @rule(data=st.data())
    def a_consumer_is_cancelled(self, data: st.DataObject) -> None:
        serving = [m for m in self.members() if m.works]
        if not serving:
            return
        self.cancel(data.draw(st.sampled_from(serving), label="consumer"))
        self.come_to_rest()

    def cancel(self, member: Member) -> None:
        member.cancelled = True
        member.process.registry.leave(member.consumer.queue, member.consumer.id)

    @precondition(lambda self: any(process.runs for process in self.processes))
    @rule(data=st.data(), everybody=st.sampled_from((False, False, True)))
    def a_process_dies(self, data: st.DataObject, everybody: bool) -> None:
        running = [process for process in self.processes if process.died_at is None]
        for process in running if everybody else [data.draw(st.sampled_from(running), label="process")]:
            process.died_at = self.now
        self.come_to_rest()

    @precondition(lambda self: any(process.runs for process in self.processes))
    @rule(data=st.data(), ms=st.sampled_from((1_000, LIFE_MS - 500, LIFE_MS + 2_000)))
    def a_process_is_halted_for_a_while(self, data: st.DataObject, ms: int) -> None:
        process = data.draw(st.sampled_from([p for p in self.processes if p.runs]), label="process")
        process.frozen_at = self.now
        self.pass_time(ms)
        process.frozen_at = None
        lost = self.lost_by(process)
        assert not lost or ms >= LIFE_MS - LIFE_MS // 3, f"{process.session} was halted for {ms} ms, and lost {lost}"
        for member in process.members:
            member.held = [claimed for claimed in member.held if claimed.tag not in lost]
            member.hot = True
        self.waiting.clear()
        self.come_to_rest()

    @rule(queue=queues, pause=st.booleans())
    def a_queue_is_paused_or_resumed(self, queue: str, pause: bool) -> None:
        if pause:
            self.pausing.pause(queue, "deploy")
        else:
            self.pausing.resume(queue)
        self.come_to_rest()

    @rule(ms=st.sampled_from((100, 1_000, 2_500, LIFE_MS + BEAT_MS + 100, 15_000)))
    def time_passes(self, ms: int) -> None:
        self.pass_time(ms)

    @rule(ms=st.sampled_from((3_000, 3_600_000)))
    def the_servers_clock_is_stepped(self, ms: int) -> None:
        self.clock.advance(ms)
        self.sweep()
        self.come_to_rest()

    def teardown(self) -> None:
        try:
            for queue in QUEUES:
                self.pausing.resume(queue)
            self.pass_time(2 * BOUND_MS)
        finally:
            self.commands.close()
