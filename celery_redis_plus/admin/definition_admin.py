"""Exports and imports the definitions of a broker for its operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from celery_redis_plus.admin.definitions import Definitions
from celery_redis_plus.admin.part import AdminPart
from celery_redis_plus.broker.arguments.queue_arguments import QueueArguments
from celery_redis_plus.broker.fanout.subscriber_registry import SubscriberRegistry
from celery_redis_plus.broker.queues.overview import is_internal
from celery_redis_plus.connection.server_time import server_ms
from celery_redis_plus.errors import InvalidArgument, PreconditionFailed
from celery_redis_plus.transport.arguments import check_queue_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from celery_redis_plus.broker.exchanges.bindings import Bindings
    from celery_redis_plus.broker.exchanges.routing import Binding
    from celery_redis_plus.broker.queues.policies import Policy, PolicyList

#: The exchanges that Celery has for itself.
CELERYS_EXCHANGES = ("celeryev", "celery.pidbox", "reply.celery.pidbox")


@dataclass(slots=True)
class Comparison:
    """What an import would do.

    Attributes:
        missing: what the broker lacks.
        present: how many definitions it has as they are.
        conflicts: of those that it has otherwise, or refuses, a sentence each.
    """

    missing: Definitions = field(default_factory=Definitions)
    present: int = 0
    conflicts: list[str] = field(default_factory=list)

    def add(self, other: Comparison) -> None:
        """Take up what another shard says."""
        self.missing.exchanges.update(other.missing.exchanges)
        self.missing.queues.update(other.missing.queues)
        self.missing.bindings.extend(one for one in other.missing.bindings if one not in self.missing.bindings)
        known = {one.pattern for one in self.missing.policies}
        self.missing.policies.extend(one for one in other.missing.policies if one.pattern not in known)
        self.conflicts.extend(one for one in other.conflicts if one not in self.conflicts)


class DefinitionAdmin(AdminPart):
    """The part of `BrokerAdmin` that is about definitions; that class has what is declared here."""

    _bindings: Bindings
    _policies: PolicyList
    set_policy: Callable[..., dict[str, str | None]]

    def definitions(self) -> Definitions:
        """Return the lasting queues, exchanges, bindings and policies, without Celery's own.

        Queues are as they were declared: what a policy changes comes with the policy. Raises as `BrokerAdmin.queues`.
        """
        found = Definitions()
        for name in sorted(self._queues.registry.lasting()):
            declared = None if is_internal(name) else self._queues.declared(name)
            if declared is not None:
                found.queues[name] = declared
        for name in self._bindings.names():
            record = None if name in CELERYS_EXCHANGES else self._bindings.record(name)
            if record is not None:
                found.exchanges[name] = record
                bound = ((name, one) for one in self._bindings.all(name) if one.queue in found.queues)
                found.bindings.extend(bound)
        found.policies.extend(self._policies.all())
        return found

    def compare_definitions(self, wanted: Definitions) -> Comparison:
        """Return what the broker lacks of these definitions, and what it has otherwise."""
        found = Comparison()
        for name, record in wanted.exchanges.items():
            there = self._bindings.record(name)
            if there is None:
                found.missing.exchanges[name] = record
            else:
                self._note(found, record.difference(there, name))
        for name, arguments in wanted.queues.items():
            declared = self._queues.declared(name)
            if declared is None:
                try:
                    check_queue_arguments(name, arguments)
                except InvalidArgument as refused:
                    found.conflicts.append(str(refused))
                else:
                    found.missing.queues[name] = arguments
            else:
                self._note(found, arguments.difference(declared, name))
        for exchange in dict.fromkeys(exchange for exchange, _ in wanted.bindings):
            bound = set(self._bindings.all(exchange))
            for _, binding in (one for one in wanted.bindings if one[0] == exchange):
                if binding in bound:
                    found.present += 1
                else:
                    found.missing.bindings.append((exchange, binding))
        self._compare_policies(found, wanted.policies)
        self._compare_ends(found, wanted)
        return found

    def _compare_policies(self, found: Comparison, wanted: Collection[Policy]) -> None:
        if not wanted:
            return
        policies, now_ms = {one.pattern: one for one in self._policies.all()}, server_ms(self._commands)
        for one in wanted:
            stands = policies.get(one.pattern)
            if 0 < one.until_ms <= now_ms:
                # Its time is over.
                found.present += 1
            elif stands is None:
                found.missing.policies.append(one)
            else:
                same = (stands.arguments, stands.priority) == (one.arguments, one.priority)
                difference = f"policy {one.pattern!r} has other arguments or another priority: {dict(stands.arguments)}"
                self._note(found, None if same else difference)

    def _compare_ends(self, found: Comparison, wanted: Definitions) -> None:
        """Note bindings whose queue or exchange is neither there nor among the definitions."""
        queues = {binding.queue for _, binding in found.missing.bindings} - wanted.queues.keys()
        exchanges = {exchange for exchange, _ in found.missing.bindings} - wanted.exchanges.keys()
        lost = [f"queue {name!r}" for name in sorted(queues) if not self._queues.exists(name)]
        lost += [f"exchange {name!r}" for name in sorted(exchanges) if self._bindings.record(name) is None]
        found.conflicts.extend(f"a binding names {one}, which is neither here nor in the file" for one in lost)
        found.missing.bindings[:] = [
            (exchange, binding)
            for exchange, binding in found.missing.bindings
            if not {f"queue {binding.queue!r}", f"exchange {exchange!r}"}.intersection(lost)
        ]

    @staticmethod
    def _note(found: Comparison, difference: str | None) -> None:
        if difference is None:
            found.present += 1
        else:
            found.conflicts.append(difference)

    def declare_definitions(self, missing: Definitions, progress: Callable[[int], object] = lambda _: None) -> list[str]:
        """Declare what `compare_definitions` has found missing. Declaring it again changes nothing.

        Exchanges come first, then queues, bindings and policies. `progress` is told of each. What was declared before an error
        stays, and the audit log tells how many there were. Returns where a policy is not in force, and why.

        Raises:
            PreconditionFailed: somebody else has just declared one of them otherwise.
        """
        refused: list[str] = []
        with self.audit.action("import definitions", in_steps=True) as action:
            steps: list[Callable[[], object]] = [
                *(partial(self._bindings.declare, name, one) for name, one in missing.exchanges.items()),
                *(partial(self._queues.declare, name, one) for name, one in missing.queues.items()),
                *(partial(self._bind, exchange, one) for exchange, one in missing.bindings),
                *(partial(self._set, one, refused) for one in missing.policies),
            ]
            for step in steps:
                step()
                action.count += 1
                progress(1)
        return refused

    def declare_queue(self, queue: str, arguments: Mapping[str, object]) -> None:
        """Declare a lasting queue; an equal queue stays as it is.

        Raises:
            InvalidArgument: an argument is not allowed, or misspelled.
            PreconditionFailed: it exists with others.
        """
        parsed = QueueArguments.parse(queue, durable=True, arguments=arguments)
        check_queue_arguments(queue, parsed)
        there = self._queues.declared(queue)
        difference = None if there is None else parsed.difference(there, queue)
        if difference is not None:
            raise PreconditionFailed(difference)
        with self.audit.action("declare", queue) as action:
            self._queues.declare(queue, parsed)
            action.count = int(there is None)

    def delete_queue(self, queue: str, *, if_unused: bool = True, if_empty: bool = False) -> int | None:
        """Delete a queue with its messages, dead letters and bindings; return how many ready messages went with it.

        Returns None where it has consumers (`if_unused`), or ready messages (`if_empty`): nothing has changed.
        """
        self.check_queue(queue)
        with self.audit.action("delete", queue) as action:
            deleted = self._queues.delete(queue, if_unused=if_unused, if_empty=if_empty)
            if deleted is None:
                return None
            for exchange in {exchange for exchange, _ in self._bindings.unbind_queues([queue])}:
                if self._bindings.is_fanout(exchange):
                    self._registry().forget_durable(self._fanout_keys(exchange), queue)
            action.count = 1
        return deleted

    def _registry(self) -> SubscriberRegistry:
        options = self._options
        return SubscriberRegistry(self._commands, timeout_s=options.subscriber_timeout, max_age_s=options.stream_max_age)

    def _bind(self, exchange: str, binding: Binding) -> None:
        self._bindings.bind(exchange, binding)
        declared = self._queues.declared(binding.queue)
        if declared is not None and declared.durable_subscriber and self._bindings.is_fanout(exchange):
            # Its broadcasts are kept from now on, without a reader yet; other queues subscribe with their consumers.
            registry = self._registry()
            registry.unsubscribe(registry.subscribe(self._fanout_keys(exchange), binding.queue, durable=True))

    def _set(self, policy: Policy, refused: list[str]) -> None:
        for_s = None if not policy.until_ms else (policy.until_ms - server_ms(self._commands)) / 1000
        if for_s is not None and for_s <= 0:
            return
        kept = self.set_policy(policy.pattern, policy.arguments, policy.reason, priority=policy.priority, for_s=for_s)
        refused += [f"policy {policy.pattern!r} in queue {queue!r}: {why}" for queue, why in kept.items() if why is not None]
