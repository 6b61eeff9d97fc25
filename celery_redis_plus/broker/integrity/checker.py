"""Checks one database, page by page, beside the processes that work on it.

Every message is looked at by a script, which sees one moment of its queue: a message in motion never looks half way. What
stands in several slots is a violation only when it is still so at a second look. No repair loses a message: a tag is only
removed where there is nothing behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED, UNROUTABLE
from celery_redis_plus.broker.integrity.keyspace_scan import KeyspaceScan, scan, survey
from celery_redis_plus.broker.integrity.registry_checks import RegistryChecks
from celery_redis_plus.broker.integrity.rules import RULES, Account, Violation
from celery_redis_plus.error_translation import concerns_keys
from celery_redis_plus.keys import STAGED
from celery_redis_plus.record_fields import COUNTERS, TIMES
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.queues import Queues
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Messages that one script call checks.
CHECKED_A_CALL = 100
#: Seconds after which what stands in several slots is looked at again.
SETTLE_S = 2.0
#: Milliseconds without a sweep after which no process can be sweeping a queue.
UNSWEPT_MS = 15_000
#: Milliseconds of lease for an unacked message whose place was lost: the default visibility timeout.
CLAIMED_ANEW_MS = 300_000
#: Dead letters that the reserved queue keeps when a repair adds one: none is removed.
NO_LIMIT = 1_000_000_000


class Checker:
    """Checks one database over one connection."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, queues: Queues, *,
        repair: bool = False, batch: int = CHECKED_A_CALL, low_first: bool = False, settle_s: float = SETTLE_S,
    ) -> None:  # fmt: skip
        """Check over `commands`.

        Args:
            commands: a connection for this alone.
            keys: spells the keys, under the application's prefix.
            queues: the queues over the same connection.
            repair: mend what can be mended.
            batch: messages that a script call looks at, 1 to 500.
            low_first: the option `priority_order` is `low-first`; counts only for messages whose score is lost.
            settle_s: seconds between two looks at what is no matter of one moment.
        """
        self._commands = commands
        self._keys = keys
        self._lists = RegistryChecks(commands, keys, queues)
        self._repair = repair
        self._batch = batch
        self._low_first = low_first
        self._settle_s = settle_s
        #: What was seen so far.
        self.account = Account()

    def run(self, queue: str | None = None) -> Iterator[Violation]:
        """Yield every violation once, of one queue only if it is named. Raises as `CommandConnection.call` does."""
        reported: set[tuple[str, str, str]] = set()
        for violation in self._run(queue):
            identity = (violation.rule, violation.owner, violation.subject)
            if identity not in reported:
                reported.add(identity)
                self.account.violations += 1
                self.account.repaired += violation.repaired
                yield violation

    def _run(self, only: str | None) -> Iterator[Violation]:
        found = survey(self._commands, self._keys)
        yield from self._check_lists(found, only)
        names = self._lists.sound([name for name in found.queues if only in {None, name}])
        self.account.queues = len(names)
        readable = set(names)
        for name in names:
            if name == UNDELIVERED:
                yield from self._check_unroutable(name)
            for violation in self._alone(name, self._check_queue(name)):
                if violation.rule == "wrong-type":
                    readable.discard(name)
                yield violation
        yield from self._check_hashes(readable)
        for name in names:
            if name in readable:
                yield from self._alone(name, self._check_members(name))
                yield from self._alone(name, self._check_groups(name))

    def _alone(self, name: str, found: Iterator[Violation]) -> Iterator[Violation]:
        """Yield what is found in a queue; what its keys hold may keep that from being looked at, and not the other queues."""
        try:
            yield from found
        except ResponseError as error:
            if not concerns_keys(error):
                raise
            yield self._violation(b"not-looked-at", name, self._keys.queue(name).meta, str(error).encode())

    def _check_lists(self, found: KeyspaceScan, only: str | None) -> Iterator[Violation]:
        """Believe only what is so twice; it may have been on its way."""
        first = {suspect.violation for suspect in self._lists.suspects(found, only)}
        if not first:
            return
        time.sleep(self._settle_s)
        for suspect in list(self._lists.suspects(found, only)):
            if suspect.violation in first:
                mended = self._repair and suspect.repair is not None
                if mended and suspect.repair is not None:
                    suspect.repair()
                yield replace(suspect.violation, repaired=mended)

    def _check_queue(self, name: str) -> Iterator[Violation]:
        keys = self._keys.queue(name)
        sets = (keys.delayed, keys.index, keys.expiry, keys.dlx_outbox, keys.dead, keys.trash, keys.held, keys.groups)
        own = (keys.meta, keys.wakeup, keys.schedule_wakeup, keys.ready, keys.consumers, *sets, keys.limited, keys.limited_until)
        numbers = (*COUNTERS, *TIMES)
        reply = self._commands.call(script("check_queue"), (*own, *keys.living[1:]), int(self._repair), UNSWEPT_MS, *numbers)
        for number, rule, detail in _threes(reply):
            yield self._violation(rule, name, own[number - 1], detail)

    def _check_unroutable(self, name: str) -> Iterator[Violation]:
        keys = self._keys.queue(name)
        if self._commands.command("ZCARD", keys.consumers):
            return
        for tag in self._commands.command("ZRANGE", keys.ready, 0, -1):
            if self._repair:
                self._commands.call(script("dead_letter_one"), keys.state_keys, tag, UNROUTABLE, NO_LIMIT)
            yield self._violation(b"never-delivered", name, tag, b"ready")

    # -- messages ---------------------------------------------------------------------------------------------------------

    def _check_hashes(self, names: set[str]) -> Iterator[Violation]:
        """Look at every message that there is."""
        for page in scan(self._commands, self._keys):
            tags: dict[str, list[bytes]] = {}
            for _, parts in page:
                if parts.kind == "message" and parts.name in names and not parts.rest.startswith(STAGED):
                    tags.setdefault(parts.name, []).append(parts.rest)
            for name, of_queue in tags.items():
                self.account.messages += len(of_queue)
                yield from self._alone(name, self._check_messages(name, of_queue))

    def _check_members(self, name: str) -> Iterator[Violation]:
        """Look at the tags without a message behind them: those with one were seen among the messages."""
        keys = self._keys.queue(name)
        for place in (keys.ready, keys.delayed, keys.index, keys.dlx_outbox, keys.dead, keys.held):
            cursor = b"0"
            while True:
                cursor, flat = self._commands.command("ZSCAN", place, cursor, "COUNT", self._batch)
                tags = flat[::2]
                there = self._commands.ask([("EXISTS", keys.message + tag) for tag in tags])
                missing = [tag for tag, exists in zip(tags, there, strict=True) if exists == 0]
                yield from self._check_messages(name, missing)
                if cursor == b"0":
                    break

    def _check_groups(self, name: str) -> Iterator[Violation]:
        meta = self._keys.queue(name).meta
        for looks in ("check_groups", "check_limiters"):
            behind, is_done = b"", False
            while not is_done:
                reply = self._commands.call(script(looks), [meta], int(self._repair), behind, self._batch)
                for tag, rule, detail in _threes(reply[1:]):
                    yield self._violation(rule, name, tag or detail, detail)
                behind, is_done = reply[0], not reply[0]

    def _check_messages(self, name: str, tags: Iterable[bytes]) -> Iterator[Violation]:
        tags = list(tags)
        places = self._keys.queue(name).state_keys
        for at in range(0, len(tags), self._batch):
            page = tags[at : at + self._batch]
            settings = (int(self._repair), int(self._low_first), CLAIMED_ANEW_MS)
            reply = self._commands.call(script("check_messages"), places, *settings, *page)
            for tag, rule, detail in _threes(reply):
                yield self._violation(rule, name, tag, detail)

    def _violation(self, rule: bytes, owner: str, subject: bytes, detail: bytes) -> Violation:
        name = rule.decode()
        mended = self._repair and bool(RULES[name].repair)
        return Violation(name, owner, subject.decode("utf-8", "replace"), detail.decode("utf-8", "replace"), mended)


def _threes(flat: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    return zip(flat[::3], flat[1::3], flat[2::3], strict=True)
