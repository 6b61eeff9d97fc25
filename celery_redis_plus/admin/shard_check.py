"""Checks a broker with several shards: each against its invariants, and whether each queue is in its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.integrity import Account
from celery_redis_plus.broker.integrity.rules import Violation
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.keys import encode_name
from celery_redis_plus.shards.declarations import REPLIES

if TYPE_CHECKING:
    from celery_redis_plus.broker.integrity.checker import Checker
    from celery_redis_plus.shards.place import Place

#: Queues that are looked at in one round trip.
QUEUES_A_CALL = 100


class ShardChecker:
    """Has the methods of a `Checker`, for all shards."""

    def __init__(self, checkers: Sequence[Checker], shards: Sequence[Place]) -> None:
        """Use one of each shard."""
        self._checkers, self._shards = checkers, shards
        self._astray = 0

    def run(self, queue: str | None = None) -> Iterator[Violation]:
        """Yield every violation once. Raises as `Checker.run` does."""
        if queue is not None:
            self._checkers = [self._checkers[shard_of(queue, len(self._shards))]]
        for checker in self._checkers:
            yield from checker.run(queue)
        for violation in self._misplaced(queue):
            self._astray += 1
            yield violation

    @property
    def account(self) -> Account:
        """What was seen so far."""
        accounts = [checker.account for checker in self._checkers]
        whole = Account(**{one.name: sum(getattr(account, one.name) for account in accounts) for one in fields(Account)})
        whole.violations += self._astray
        return whole

    def _misplaced(self, only: str | None) -> Iterator[Violation]:
        first = self._shards[0]
        begun = first.commands.command("HGET", first.keys.shards_raise, "shards")
        if begun is not None and only is None:
            detail = f"run `celery-redis-plus shards raise … {begun.decode(errors='replace')}` again"
            yield Violation("raise-not-done", "", "", detail)
        for number, shard in enumerate(self._shards):
            names = [
                name
                for name in (*shard.queues.registry.lasting(), *shard.queues.registry.expiring())
                if only in {None, name}
                and shard_of(name, len(self._shards)) != number
                # Each shard has its own; and where its shard is down, one for replies is on another one.
                and name != UNDELIVERED
                and not name.endswith(REPLIES)
            ]
            for at in range(0, len(names), QUEUES_A_CALL):
                yield from self._of_others(number, shard, names[at : at + QUEUES_A_CALL])

    def _of_others(self, number: int, shard: Place, names: Sequence[str]) -> Iterator[Violation]:
        """Yield those of the queues of other shards that have messages here, or a record that no fanout exchange needs."""
        asked: list[tuple[bytes | str, ...]] = []
        for name in names:
            keys = shard.keys.queue(name)
            asked += [("ZCARD", key) for key in (keys.ready, keys.held, keys.delayed, keys.index, keys.dlx_outbox, keys.dead)]
            asked += [("HLEN", keys.leaving_shard), ("ZSCORE", shard.keys.queues, encode_name(name))]
        replies, bound = shard.commands.ask(asked), None
        for at, name in enumerate(names):
            *counts, score = replies[8 * at : 8 * at + 8]
            messages, home = sum(counts), shard_of(name, len(self._shards))
            text = f"in shard {number}; its own is {home}"
            if messages:
                yield Violation("other-shard", name, f"shard {number}", f"{messages:,} message(s) {text}")
            elif score is not None and float(score) == float("inf"):
                if bound is None:
                    bindings = shard.bindings
                    bound = {one.queue for exchange in bindings.of_type("fanout") for one in bindings.all(exchange)}
                if name not in bound:
                    yield Violation("other-shard", name, f"shard {number}", f"it is {text}")
