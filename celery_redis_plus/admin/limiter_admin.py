"""The limiters of a broker, for its operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.admin.part import AdminPart
from celery_redis_plus.broker.arguments.limiters import LimiterRule
from celery_redis_plus.broker.queues import limiters

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.limiters import LimiterState, WaitedFor


class LimiterAdmin(AdminPart):
    """The part of `BrokerAdmin` that is about limiters."""

    def limiters(self) -> list[LimiterState]:
        """Return the limiters that were used, each with its keys, those with the most waiting messages first."""
        found = limiters.read_limiters(self._commands, self._keys)
        return sorted(found, key=lambda one: (-one.waiting, -one.held_s, one.limiter))

    def limiters_of(self, queue: str, most: int = 100) -> list[WaitedFor]:
        """Return the limiters that messages of `queue` wait for, those first that are looked at next; `most` at most."""
        self.check_queue(queue)
        return limiters.waited_for(self._commands, self._keys, queue, most)

    def hold_limiter(self, limiter: str, seconds: float) -> None:
        """Stop a limiter for `seconds` from now on; 0 ends the stop.

        Args:
            limiter: its name, or behind a colon also a key: `stripe`, `stripe:customer 7`.
            seconds: for how long.

        Raises:
            InvalidArgument: the name or the time is not allowed; or too many limiters have rules or holds.
        """
        with self.audit.action("hold limiter", "", limiter=limiter, seconds=seconds) as action:
            limiters.hold(self._commands, self._keys, limiter, seconds)
            action.count = 1

    def set_limiter(self, limiter: str, rule: str | None) -> None:
        """Have a rule hold for a limiter in place of that of its messages; None takes it away.

        It is in force at once, also for messages that wait. A rate takes the place of a rate, a
        concurrency that of a concurrency.

        Args:
            limiter: its name, or behind a colon also a key.
            rule: such as `100/s burst=20`, `100/m window` or `concurrency=4`.

        Raises:
            InvalidArgument: as `hold_limiter`; or `rule` is none.
        """
        parsed = None if rule is None else LimiterRule.parse(rule)
        with self.audit.action("set limiter", "", limiter=limiter, rule=rule) as action:
            limiters.set_limiter_rule(self._commands, self._keys, limiter, parsed)
            action.count = 1
