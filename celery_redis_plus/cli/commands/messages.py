"""`celery-redis-plus messages`: what waits in a queue, and one message by its id."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.cli.asking import (
    DURATION,
    complain,
    confirm,
    dry_run_option,
    in_steps,
    interrupted,
    json_option,
    limit_option,
    stop_on_interrupt,
    task_option,
    yes_option,
)
from celery_redis_plus.cli.exit_status import DONE, FAILED
from celery_redis_plus.cli.output import Progress, listed, moment, print_fields, print_json, print_listing, time_of
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.queues.listing import ListedMessage
    from celery_redis_plus.broker.queues.messages import MessageInfo

#: What the time of a message in a state means.
TIMES = {"ready": "SINCE (UTC)", "delayed": "DUE (UTC)", "unacked": "LEASE ENDS (UTC)"}

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


@click.group(short_help="List, show, cancel, move or reschedule messages.")
def command() -> None:
    """List the messages of a queue, look at one, cancel it, move it into another queue, or give it another time.

    ID is a message's id, the first column of the list, or Celery's task id. For a task id each message is looked at, without
    --queue up to 200,000; a queue with 'event_log_index' tells at once, also of finished ones.
    """


@command.command("list")
@with_target
@click.argument("queue")
@click.option(
    "--state", type=click.Choice(list(TIMES)), default="ready", show_default=True, help="Which messages."
)  # fmt: skip
@task_option
@limit_option
@json_option
def list_(target: Target, *, queue: str, state: Any, task: str | None, limit: int, as_json: bool) -> None:
    """List messages of a queue, the next to be delivered or due first.

    --json prints one object a line, with headers and properties.
    """
    with target.admin() as admin:
        found = list(islice(admin.list_messages(queue, state, task), limit))
        total = getattr(admin.overview_of(queue), state)
    head = ("ID", TIMES[state], "PRIORITY", "DELIVERIES", "BYTES", "TASK OR ROUTING KEY", "TASK ID", "HOLDER")
    print_listing(found, listed, head, _row, as_json=as_json)
    if not as_json:
        shown = f"{len(found):,}" if task is None else f"{len(found):,} of task {task!r}"
        click.echo(f"{shown} of {total:,} {state} messages of queue {queue!r}")


def _row(one: ListedMessage) -> list[Any]:
    what = one.task or one.routing_key
    return [one.tag, moment(one.time_ms), one.priority, one.deliveries, one.size, what, one.task_id, one.holder]


@command.command()
@with_target
@click.argument("message", metavar="ID")
@queue_option
@json_option
def show(target: Target, *, message: str, queue: str | None, as_json: bool) -> int:
    """Show one: its state and place, its deliveries, who has it, its last error, its headers, properties and body. Of a message
    that is gone, what the events of its queue tell.
    """
    with target.admin() as admin:
        with _searching(admin, queue):
            found = admin.messages.find(message, queue)
        if found is None:
            return _unknown([message], queue, "")
        headers, properties, body = admin.stored(found.queue, found.id)
    shown = _described(found)
    if as_json:
        print_json({**shown, "headers": headers, "properties": properties, "body": body})
        return DONE
    events = shown.pop("events")
    lines = [(f"headers.{name}", value) for name, value in headers.items()]
    lines += [(f"properties.{name}", value) for name, value in properties.items()]
    lines += [("body", body.decode("utf-8", "backslashreplace") or None)]
    lines += [(f"event {number}", f"{event['event']} {event['ts']:%Y-%m-%d %H:%M:%S}") for number, event in enumerate(events, 1)]
    print_fields([*shown.items(), *lines])
    return DONE


@command.command()
@with_target
@with_selection
@click.option(
    "--dead-letter",
    is_flag=True,
    help="Make them dead letters with the reason 'cancelled', instead of deleting them. Asks if dead letters would be lost.",
)
@dry_run_option
@yes_option
@json_option
def cancel(target: Target, *, chosen: Selection, dead_letter: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove messages that no consumer has, ready or delayed: those named, or all of a task in a queue (--queue and --task)."""
    if not dead_letter and not dry_run:
        confirm(f"Delete {chosen} for good?", yes=yes)
    with target.admin() as admin:
        losses = Losses(admin, chosen) if dead_letter else None
        if losses is not None and losses.expected and not dry_run:
            confirm(losses.question, yes=yes)

        def one(message: str) -> bool:
            return admin.messages.cancel(message, chosen.queue, dead_letter=dead_letter)

        def page(tags: list[str]) -> int:
            return len(admin.cancel(chosen.queue or "", tags, dead_letter=dead_letter))

        return _each(admin, chosen, one, page, "cancelled", dry_run=dry_run, as_json=as_json, losses=losses)


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
        with _searching(admin, chosen.queue):
            found = [admin.messages.find(message, chosen.queue) for message in chosen.ids]
        return Counter(one.queue for one in found if one is not None and one.position is not None and one.state != "DEAD")


@command.command()
@with_target
@with_selection
@click.option("--to", required=True, metavar="QUEUE", help="The queue that gets them.")
@dry_run_option
@json_option
def move(target: Target, *, chosen: Selection, to: str, dry_run: bool, as_json: bool) -> int:
    """Move messages that no consumer has into another queue, with their priority and their time: those named, or all of a task in
    a queue (--queue and --task).
    """
    if chosen.queue == to:
        raise click.UsageError(f"--to {to} is the queue that they are in; allowed is another one")
    with target.admin() as admin:
        admin.check_queue(to)

        def one(message: str) -> bool:
            return admin.messages.move(message, to, chosen.queue) is not None

        def page(tags: list[str]) -> int:
            return sum(map(one, tags))

        return _each(admin, chosen, one, page, "moved", dry_run=dry_run, as_json=as_json)


@command.command()
@with_target
@click.argument("message", metavar="ID")
@click.option("--in", "in_s", type=DURATION, metavar="TIME", help="So long from now, such as 0, 90s, 15m, 2h.")
@click.option("--at", metavar="WHEN", help="At this time, in ISO 8601; UTC without an offset.")
@queue_option
@json_option
def reschedule(
    target: Target, *, message: str, in_s: float | None, at: str | None, queue: str | None, as_json: bool
) -> int:  # fmt: skip
    """Give a message that no consumer has yet another time."""
    from celery_redis_plus.broker.arguments.eta import eta_to_ms

    if (in_s is None) == (at is None):
        raise click.UsageError("allowed is either --in TIME or --at WHEN")
    if in_s is not None:
        eta: int | str = f"+{round(in_s * 1000)}"
    else:
        try:
            eta = eta_to_ms(datetime.fromisoformat(at or ""), naive_is_utc=True)
        except ValueError as error:
            raise click.UsageError(f"--at {at!r}: {error}; allowed is a time such as 2026-11-22T15:00:00+01:00") from error
    with target.admin() as admin, _searching(admin, queue):
        found = admin.messages.reschedule(message, eta, queue)
    if not found:
        return _unknown([message], queue)
    if as_json:
        print_json({"id": message, "rescheduled": True})
    else:
        click.echo(f"message {message} has its new time")
    return DONE


def _each(
    admin: BrokerAdmin, chosen: Selection, one: Callable[[str], bool], page: Callable[[list[str]], int], done: str, *,
    dry_run: bool, as_json: bool, losses: Losses | None = None,
) -> int:  # fmt: skip
    """Treat the messages one by one by their ids, or those of a task in pages; say how many it were."""
    if chosen.task is None:
        treat = (lambda message: admin.messages.find(message, chosen.queue) is not None) if dry_run else one
        with _searching(admin, chosen.queue):
            unknown = [message for message in chosen.ids if not treat(message)]
        _tell(done, len(chosen.ids) - len(unknown), losses, dry_run=dry_run, as_json=as_json)
        return _unknown(unknown, chosen.queue) if unknown else DONE
    queue, count = chosen.queue or "", 0
    with stop_on_interrupt() as stopped:
        overview = admin.overview_of(queue)
        pages = admin.waiting_tags(queue, chosen.task)
        for tags in in_steps(pages, overview.ready + overview.delayed, "messages looked at", stopped):
            count += len(tags) if dry_run or not tags else page(tags)
        was_interrupted = stopped()
    _tell(done, count, losses, dry_run=dry_run, as_json=as_json)
    return interrupted() if was_interrupted else DONE


def _tell(done: str, count: int, losses: Losses | None, *, dry_run: bool, as_json: bool) -> None:
    verb = "would be" if dry_run else "are"
    lost = 0 if losses is None else losses.expected if dry_run else losses.so_far()
    if as_json:
        print_json({done: count, "dry_run": dry_run} if losses is None else {done: count, "evicted": lost, "dry_run": dry_run})
        return
    click.echo(f"{count:,} message(s) {verb} {done}")
    if losses is not None and lost:
        click.echo(f"{lost:,} dead letter(s) {verb} deleted for good {losses.reason}")


@contextmanager
def _searching(admin: BrokerAdmin, queue: str | None) -> Iterator[None]:
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
        admin.messages.watch = step
        yield


def _unknown(ids: list[str], queue: str | None, otherwise: str = ", or a consumer has it") -> int:
    """Say that messages were not found; `otherwise` is another reason why an action does not find one."""
    where = "in no queue" if queue is None else f"not in queue {queue!r}"
    for id_ in ids:
        complain(f"message {id_} is {where}{otherwise}")
    return FAILED


def _described(found: MessageInfo) -> dict[str, Any]:
    """Return what is known, with times as times: `since_ms` becomes `since`."""
    shown: dict[str, Any] = {}
    for name, value in asdict(found).items():
        if name in {"since_ms", "due_ms", "published_ms", "first_delivery_ms", "last_delivery_ms"}:
            shown[name.removesuffix("_ms")] = time_of(value)
        elif name == "events":
            shown[name] = [{**event, "ts": time_of(event["ts"] // 1000)} for event in value]
        else:
            shown[name] = value
    return shown
