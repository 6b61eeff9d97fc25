"""The message groups of a queue, for its operator."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from celery_redis_plus.admin.part import AdminPart
from celery_redis_plus.broker.queues.groups import GROUPS_A_CALL, GroupRule, read_groups, set_rule

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.groups import GroupState


class GroupAdmin(AdminPart):
    """The part of `BrokerAdmin` that is about message groups."""

    def groups(self, queue: str) -> list[GroupState]:
        """Return the groups of `queue` that have messages or a rule of their own, those with the most held messages first."""
        self.check_queue(queue)
        return sorted(read_groups(self._commands, self._keys, queue), key=lambda one: (-one.held, -one.admitted, one.group))

    def some_groups(self, queue: str, most: int) -> list[GroupState]:
        """Return up to `most` groups of `queue`: of the first 200, those with the most held messages. A page is shown often."""
        self.check_queue(queue)
        found = islice(read_groups(self._commands, self._keys, queue), GROUPS_A_CALL)
        return sorted(found, key=lambda one: (-one.held, -one.admitted, one.group))[:most]

    def set_group(
        self, queue: str, group: str, *, concurrency: int | None = None, weight: int | None = None, paused: bool = False
    ) -> None:
        """Set a rule for one group of `queue` in place of the queue's arguments; without values, end it.

        It is in force at once, also for messages that wait already; those that are ready or in work stay so.

        Args:
            queue: the queue.
            group: the group's name.
            concurrency: how many of its messages may be ready or in work, in a queue with `x-group-concurrency`.
            weight: how many of its messages have their turn together, in a queue with `x-fair`.
            paused: whether none of its messages goes to consumers.

        Raises:
            InvalidArgument: a number is out of its range, the queue has no groups, or too many groups have rules.
        """
        self.check_queue(queue)
        rule = GroupRule(concurrency, weight, paused)
        rule.encode()
        with self.audit.action(
            "set group", queue, group=group, concurrency=concurrency, weight=weight, paused=paused or None
        ) as action:
            set_rule(self._commands, self._keys, queue, group, rule)
            action.count = 1
