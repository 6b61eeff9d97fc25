"""The policies of a broker for its operator, and the arguments of queues that are in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_redis_plus.admin.part import AdminPart
from celery_redis_plus.broker.arguments.names import is_meant
from celery_redis_plus.errors import InvalidArgument, PreconditionFailed, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redis_plus.broker.queues.policies import Policy, PolicyList


def policy_shown(pattern: str, arguments: Mapping[str, object], reason: str, for_s: float | None) -> dict[str, Any]:
    """Return what the audit log says of a policy."""
    shown = " ".join(f"{name}={value}" for name, value in arguments.items())
    return {"pattern": pattern, "arguments": shown, "reason": reason, "for_s": for_s}


class PolicyAdmin(AdminPart):
    """The part of `BrokerAdmin` that is about policies; that class has what is declared here."""

    _policies: PolicyList

    def arguments(self, queue: str) -> dict[str, object]:
        """Return the arguments of `queue` that are in force: those of its declaration, with what a policy replaces."""
        known = self._queues.read(queue)
        if known is None:
            raise QueueNotFound(f"there is no queue {queue!r}")
        return dict(known.arguments.arguments)

    def policies(self) -> list[Policy]:
        """Return the policies that apply now, by pattern."""
        return self._policies.all()

    def set_policy(
        self, pattern: str, arguments: Mapping[str, object], reason: str, *, priority: int = 0, for_s: float | None = None
    ) -> dict[str, str | None]:
        """Steer the lasting queues whose names match `pattern`, those that are declared later as well.

        Args:
            pattern: a queue's name, or a pattern with `*`, `?` and `[...]`.
            arguments: of a declaration, such as `{"x-rate-limit": "50/m"}`, that only steer; None takes one away.
            reason: why, for others.
            priority: of several policies that match a queue the one with the highest applies.
            for_s: after so many seconds the policy ends by itself; None: when it is removed.

        Returns:
            The queues that match now, and for each why the policy is not in force there, or None where it is.

        Raises:
            InvalidArgument: naming the argument or value, and what is allowed.
        """
        policy = self.list_policy(pattern, arguments, reason, priority=priority, for_s=for_s)
        with self.audit.action("set policy", in_steps=True, **policy_shown(pattern, arguments, reason, for_s)) as action:
            found = self._steer(policy)
            action.count = sum(refusal is None for refusal in found.values())
        return found

    def list_policy(
        self, pattern: str, arguments: Mapping[str, object], reason: str, *, priority: int = 0, for_s: float | None = None
    ) -> Policy:
        """Write a policy as `set_policy` does, and leave it to the leader to put it into force. Raises as `set_policy`."""
        return self._policies.put(pattern, arguments, reason, priority=priority, for_s=for_s)

    def remove_policy(self, pattern: str) -> dict[str, str | None] | None:
        """Remove a policy: its queues have their own arguments again, or those of another matching policy.

        Returns None where there is none, else as `set_policy`.
        """
        return self.steer_without_policy(pattern) if self.unlist_policy(pattern) else None

    def unlist_policy(self, pattern: str) -> bool:
        """Remove a policy from the list, and leave it to the leader to steer its queues; return whether there was one."""
        return self._policies.remove(pattern)

    def steer_without_policy(self, pattern: str) -> dict[str, str | None]:
        """Steer the queues that a policy has named which is no longer on the list. Returns as `set_policy`."""
        with self.audit.action("remove policy", in_steps=True, pattern=pattern) as action:
            found = self._steer(pattern)
            action.count = sum(refusal is None for refusal in found.values())
        return found

    def _steer(self, policy: Policy | str) -> dict[str, str | None]:
        """Steer the queues that a policy names, or that one that is gone by now has named."""
        policies = self._policies.read()
        pattern = policy if isinstance(policy, str) else policy.pattern
        found: dict[str, str | None] = {}
        for queue in sorted(self._queues.registry.lasting()):
            if not is_meant(queue, pattern):
                continue
            by = policies.applying(queue)
            found[queue] = (
                f"policy {by.pattern!r} applies instead" if by and not isinstance(policy, str) and by != policy else None
            )
            try:
                self._queues.steer(queue, policies=policies, strict=True)
            except (InvalidArgument, PreconditionFailed, ResponseError) as error:
                found[queue] = str(error)
        return found
