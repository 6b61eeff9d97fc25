"""The message groups of a queue, and what holds for one of them in place of the queue's arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import decode_name, encode_name
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

#: Groups that one script call lists, some 3 µs each.
GROUPS_A_CALL: Final = 200
#: Groups of a queue that may have rules of their own: each message of the queue's groups reads them.
MOST_RULES: Final = 100
#: The highest concurrency and weight of a group.
MOST_AT_ONCE: Final = 100_000


@dataclass(frozen=True, slots=True)
class GroupRule:
    """What holds for one group in place of its queue's arguments; None: the queue's.

    Attributes:
        concurrency: `x-group-concurrency`, in a queue with it.
        weight: ready messages of the group in its turn, in a queue with `x-fair`, which has 1 for all.
        paused: whether none of its messages goes to consumers.
    """

    concurrency: int | None = None
    weight: int | None = None
    paused: bool = False

    def encode(self) -> str:
        """Return it as the scripts read it; '' where it says nothing.

        Raises:
            InvalidArgument: a number is out of its range.
        """
        said: dict[str, int | bool] = {}
        for name, value in (("concurrency", self.concurrency), ("weight", self.weight)):
            if value is None:
                continue
            if not 1 <= value <= MOST_AT_ONCE:
                raise InvalidArgument(f"{name} of a group is {value!r:.100}; allowed is a number from 1 to {MOST_AT_ONCE:,}")
            said[name] = value
        if self.paused:
            said["paused"] = True
        return json.dumps(said) if said else ""


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group that has messages, or a rule of its own.

    Attributes:
        group: its name.
        held: messages that wait for their group's turn.
        admitted: messages that are ready or with consumers.
        rule: what holds for it in place of the queue's arguments; None without one.
    """

    group: str
    held: int
    admitted: int
    rule: GroupRule | None = None


def read_groups(commands: CommandConnection, keys: Keys, queue: str) -> Iterator[GroupState]:
    """Yield the groups of a queue, those with messages first. Raises as `CommandConnection.call` does."""
    behind, seen, rules = b"", set(), {}
    while True:
        behind, said, *found = commands.call(script("list_groups"), [keys.queue(queue).meta], behind, GROUPS_A_CALL)
        rules = {group: GroupRule(**rule) for group, rule in json.loads(said or b"{}").items()}
        for name, held, admitted in zip(found[::3], found[1::3], found[2::3], strict=True):
            group = decode_name(name)
            seen.add(group)
            yield GroupState(group, held, admitted, rules.get(group))
        if not behind:
            break
    yield from (GroupState(group, 0, 0, rule) for group, rule in rules.items() if group not in seen)


def set_rule(commands: CommandConnection, keys: Keys, queue: str, group: str, rule: GroupRule) -> None:
    """Have `rule` hold for a group, also for messages that wait already. Raises as `CommandConnection.call` does.

    Raises:
        InvalidArgument: a number is out of its range; the queue has no groups; or `MOST_RULES` groups have one already.
    """
    done = commands.call(script("set_group"), [keys.queue(queue).meta], encode_name(group), rule.encode(), MOST_RULES)
    if done == 0:
        raise InvalidArgument(f"queue {queue!r} has no groups; allowed is one with x-group-concurrency or x-fair")
    if done < 0:
        raise InvalidArgument(f"{MOST_RULES} groups of queue {queue!r} have rules of their own; allowed are no more")
