"""Which messages a command means: by their ids, or all of a task in a queue; and the search for an id among all queues."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.cli.asking import complain, task_option
from celery_redis_plus.cli.exit_status import FAILED
from celery_redis_plus.cli.output import Progress, moment

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.queues.messages import MessageInfo

#: How `MessageInfo` calls the states of messages that no consumer has.
WAITING_STATES = frozenset(("PENDING", "DELAYED", "RETRYABLE"))
queue_option = click.option("--queue", metavar="QUEUE", help="Look into this queue only; without it into all.")


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that are meant: those with these ids, or those of a task in a queue."""

    ids: tuple[str, ...]
    queue: str | None
    task: str | None

    def check(self) -> None:
        """Raise click.UsageError where it is neither, or both."""
        if bool(self.ids) == (self.task is not None):
            raise click.UsageError("allowed are either ids, or --task TASK with --queue QUEUE")
        if self.task is not None and self.queue is None:
            raise click.UsageError(f"--task {self.task!r} needs the queue to look into: --queue QUEUE")

    def __str__(self) -> str:
        if self.ids:
            return f"{len(self.ids):,} message(s)"
        return f"the waiting messages of task {self.task!r} in queue {self.queue!r}"


def with_selection(command: Callable[..., int]) -> Callable[..., int]:
    """Add ids, `--queue` and `--task`, which the command gets as `chosen`, a `Selection`."""

    @click.argument("ids", nargs=-1, metavar="[ID]...")
    @queue_option
    @task_option
    @functools.wraps(command)
    def run(*arguments: Any, ids: tuple[str, ...], queue: str | None, task: str | None, **options: Any) -> int:
        chosen = Selection(ids, queue, task)
        chosen.check()
        return command(*arguments, chosen=chosen, **options)

    return run


@contextmanager
def searching(admin: BrokerAdmin, queue: str | None) -> Iterator[None]:
    """Tell how far a search is that looks at each message."""
    progress: Progress | None = None

    def step(count: int) -> None:
        nonlocal progress
        if progress is None:
            looked_at = admin.overview() if queue is None else [admin.overview_of(queue)]
            total = sum(one.ready + one.delayed + one.unacked + one.dead for one in looked_at)
            progress = stack.enter_context(Progress(total, "messages looked at"))
        progress.step(count)

    with ExitStack() as stack:
        # It tells how far it is, and can be interrupted: no bound is needed.
        admin.messages.watch, admin.messages.most = step, None
        yield


def tell_unknown(admin: BrokerAdmin, ids: list[str], queue: str | None) -> int:
    """Say that messages were not found, and what was searched."""
    where = "in no queue" if queue is None else f"not in queue {queue!r}"
    for id_ in ids:
        complain(f"message {id_} is {where}: {admin.messages.searched}")
    return FAILED


def tell_not_waiting(admin: BrokerAdmin, ids: list[str], queue: str | None) -> int:
    """Say of messages with which nothing could be done where they are."""
    for id_ in ids:
        found = admin.messages.find(id_, queue)
        if found is None:
            tell_unknown(admin, [id_], queue)
        else:
            complain(f"message {id_} is {found.state} in queue {found.queue!r}{_held_by(admin, found)}: nothing was done")
    return FAILED


def _held_by(admin: BrokerAdmin, found: MessageInfo) -> str:
    """Return who has a message, and since when; '' where no consumer has it."""
    if found.session is None:
        return ""
    holder = admin.holders(found.queue).get(found.session, found.holder)
    since = moment(found.since_ms)
    return f", {holder} has it" + (f" since {since} UTC" if since else "")


def is_waiting(found: MessageInfo | None) -> bool:
    """Return whether a message waits, ready or delayed, so that it can be changed."""
    return found is not None and found.state in WAITING_STATES


class Losses:
    """The dead letters that go for good when messages become dead letters: queues keep only so many, transient ones none."""

    def __init__(self, admin: BrokerAdmin, chosen: Selection) -> None:
        """Look how many it would be, before anything is changed."""
        self._admin = admin
        names = admin.queues() if chosen.queue is None else [chosen.queue]
        self._before = {queue: admin.dead_letters.lost(queue) for queue in names}
        #: How many it would be.
        self.expected = sum(self._lost_by(queue, count) for queue, count in self._counted(chosen).items())

    @property
    def question(self) -> str:
        """What to ask before."""
        return f"Delete {self.expected:,} dead letter(s) for good {self.reason}?"

    @property
    def reason(self) -> str:
        """Why they go."""
        return (
            f"(a queue keeps {self._admin.dead_letter_max:,}, the youngest, by the option dead_letter_max; a transient one none)"
        )

    def so_far(self) -> int:
        """Return how many have gone from the queues since."""
        return sum(max(0, self._admin.dead_letters.lost(queue) - before) for queue, before in self._before.items())

    def _lost_by(self, queue: str, count: int) -> int:
        return self._admin.dead_letters.lost_by(queue, count, self._admin.dead_letter_max)

    def _counted(self, chosen: Selection) -> Counter[str]:
        """Return how many messages of each queue are meant; none where there is room for all."""
        admin = self._admin
        if chosen.task is not None:
            queue = chosen.queue or ""
            overview = admin.overview_of(queue)
            if not self._lost_by(queue, overview.ready + overview.delayed):
                return Counter()
            return Counter({queue: sum(len(tags) for _, tags in admin.waiting_tags(queue, chosen.task))})
        if not any(self._lost_by(queue, len(chosen.ids)) for queue in self._before):
            return Counter()
        with searching(admin, chosen.queue):
            found = [admin.messages.find(message, chosen.queue) for message in chosen.ids]
        return Counter(one.queue for one in found if one is not None and one.position is not None and one.state != "DEAD")
