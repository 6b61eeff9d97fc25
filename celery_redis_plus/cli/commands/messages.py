"""`celery-redis-plus messages`: what waits in a queue, and one message by its id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.cli.asking import (
    DURATION,
    audited,
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
from celery_redis_plus.cli.exit_status import DONE
from celery_redis_plus.cli.message_selection import (
    Losses,
    Selection,
    is_waiting,
    queue_option,
    searching,
    tell_not_waiting,
    tell_unknown,
    with_selection,
)
from celery_redis_plus.cli.output import listed, moment, print_fields, print_json, print_listing, tell, time_of
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.admin.holders import Holder
    from celery_redis_plus.broker.queues.listing import ListedMessage
    from celery_redis_plus.broker.queues.messages import MessageInfo

#: What the time of a message in a state means.
TIMES = {"ready": "SINCE (UTC)", "delayed": "DUE (UTC)", "unacked": "CLAIMED (UTC)"}
#: What JSON calls what was done, where that is no word of the table.
JSON_NAMES = {"back in their queues": "kicked"}


@click.group(short_help="List, show, cancel, move, kick, reschedule or prioritize messages.")
def command() -> None:
    """List the messages of a queue, look at one, cancel it, move it into another queue, give it another time or
    priority, or take it from its consumer.

    ID is a message's id, the first column of the list, or Celery's task id. A queue with 'event_log_index' knows a task id at
    once, also that of a finished task; elsewhere each message is looked at, of all queues, or of the one that --queue names.
    """


@command.command("list")
@with_target
@click.argument("queue")
@click.option(
    "--state", type=click.Choice(list(TIMES)), default="ready", show_default=True, help="Which messages."
)  # fmt: skip
@task_option
@click.option("--text", metavar="TEXT", help="Those with this text in their headers: in the task's arguments, or an id.")
@limit_option
@json_option
def list_(
    target: Target, *, queue: str, state: Any, task: str | None, text: str | None, limit: int, as_json: bool
) -> None:  # fmt: skip
    """List messages of a queue, the next to be delivered or due first.

    --json prints one object a line, with headers and properties.
    """
    from celery_redis_plus.broker.arguments.selection import has_text

    with target.admin() as admin:
        messages = (one for one in admin.list_messages(queue, state, task) if has_text(one.headers, text))
        found = list(islice(messages, limit))
        total = getattr(admin.overview_of(queue), state)
        holders = admin.holders(queue) if state == "unacked" else {}
    head = ("ID", TIMES[state], "PRIORITY", "DELIVERIES", "BYTES", "TASK OR ROUTING KEY", "TASK ID", "HOST AND PID")

    def described(one: ListedMessage) -> dict[str, Any]:
        return {**listed(one), **_of_holder(holders, one.holder)}

    def row(one: ListedMessage) -> list[Any]:
        at = moment(one.claimed_ms if state == "unacked" else one.time_ms)
        holder = holders.get(one.holder or "")
        what = one.task or one.routing_key
        return [one.tag, at, one.priority, one.deliveries, one.size, what, one.task_id, holder and str(holder)]

    print_listing(found, described, head, row, as_json=as_json)
    if not as_json:
        shown = f"{len(found):,}" if task is None else f"{len(found):,} of task {task!r}"
        if text is not None:
            shown += f" with {text!r}"
        click.echo(f"{shown} of {total:,} {state} messages of queue {queue!r}")


def _of_holder(holders: Mapping[str, Holder], session: str | None) -> dict[str, Any]:
    """Return host and process of the one that holds a message; none where nobody does, or where it is not known yet."""
    holder = holders.get(session or "")
    return {"host": None if holder is None else holder.host, "pid": None if holder is None else holder.pid}


@command.command()
@with_target
@click.argument("message", metavar="ID")
@queue_option
@json_option
def show(target: Target, *, message: str, queue: str | None, as_json: bool) -> int:
    """Show one: its state and place, deliveries, holder, last error, headers, properties and body. Of one that is gone, show what
    its queue's events tell.
    """
    with target.admin() as admin:
        with searching(admin, queue):
            found = admin.messages.find(message, queue)
        if found is None:
            return tell_unknown(admin, [message], queue)
        headers, properties, body = admin.stored(found.queue, found.id)
        holders = {} if found.session is None else admin.holders(found.queue)
    shown = {**_described(found), **_of_holder(holders, found.session)}
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
    help="Make them dead letters with the reason 'cancelled'. Asks if dead letters would be lost.",
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

        treatment = Treatment("cancelled", one, page, ("cancel", {"dead_letter": dead_letter or None}))
        return _each(admin, chosen, treatment, dry_run=dry_run, as_json=as_json, losses=losses)


@command.command()
@with_target
@with_selection
@click.option("--to", required=True, metavar="QUEUE", help="The queue that gets them.")
@dry_run_option
@json_option
def move(target: Target, *, chosen: Selection, to: str, dry_run: bool, as_json: bool) -> int:
    """Move messages that no consumer has into another queue: those named, or all of a task in a queue (--queue and --task). They
    keep priority and time.
    """
    if chosen.queue == to:
        raise click.UsageError(f"--to {to} is the queue that they are in; allowed is another one")
    with target.admin() as admin:
        admin.check_queue(to)

        def one(message: str) -> bool:
            return admin.messages.move(message, to, chosen.queue) is not None

        def page(tags: list[str]) -> int:
            return sum(map(one, tags))

        treatment = Treatment("moved", one, page, ("move", {"to": to}))
        return _each(admin, chosen, treatment, dry_run=dry_run, as_json=as_json)


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
    """Give a message that no consumer has another time."""
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
    told = {"id": message, "rescheduled": True}, f"message {message} has its new time"
    return _change(target, message, queue, lambda admin: admin.messages.reschedule(message, eta, queue), *told, as_json=as_json)


@command.command()
@with_target
@click.argument("message", metavar="ID")
@click.argument("priority", type=click.IntRange(0, 255), metavar="PRIORITY")
@queue_option
@json_option
def prioritize(target: Target, *, message: str, priority: int, queue: str | None, as_json: bool) -> int:
    """Give a message that no consumer has another priority, 0 to 255. It takes the place of that priority; the worker is told the
    old one.
    """
    told = {"id": message, "priority": priority}, f"message {message} has priority {priority}"
    return _change(
        target, message, queue, lambda admin: admin.messages.prioritize(message, priority, queue), *told, as_json=as_json
    )


def _change(
    target: Target, message: str, queue: str | None, change: Callable[[BrokerAdmin], object], value: object, text: str, *,
    as_json: bool,
) -> int:  # fmt: skip
    """Change a message that waits; tell `value` or `text` of it, or where it is instead."""
    with target.admin() as admin, searching(admin, queue):
        if not change(admin):
            return tell_not_waiting(admin, [message], queue)
    tell(value, text, as_json=as_json)
    return DONE


@command.command()
@with_target
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--consumer", metavar="CONSUMER", help="All that its connection holds, by its id in `consumers`.")
@queue_option
@dry_run_option
@yes_option
@json_option
def kick(
    target: Target, *, ids: tuple[str, ...], consumer: str | None, queue: str | None, dry_run: bool, yes: bool, as_json: bool
) -> int:  # fmt: skip
    """Take messages from their consumers, and make them ready again: those named, or all of a consumer (--consumer and --queue).

    It counts as no failure. A task that runs is not stopped: it goes on beside its next delivery, and its ack still removes the
    message. A consumer that lives may be given the same message again.
    """
    if bool(ids) == (consumer is not None):
        raise click.UsageError("allowed are either ids, or --consumer CONSUMER with --queue QUEUE")
    if consumer is not None and queue is None:
        raise click.UsageError(f"--consumer {consumer} needs the queue that it consumes: --queue QUEUE")
    if not dry_run:
        confirm("A task that runs may then run twice. Go on?", yes=yes)
    with target.admin() as admin:
        if consumer is not None:
            return _kick_consumer(admin, queue or "", consumer, dry_run=dry_run, as_json=as_json)
        with searching(admin, queue):
            places = {message: admin.messages.find(message, queue) for message in ids}
        kicked, others = 0, []
        for message, found in places.items():
            is_held = found is not None and found.state == "PROCESSING"
            if found is not None and is_held and (dry_run or admin.give_back(found.queue, [found.id])):
                kicked += 1
            else:
                others.append(message)
        _tell("back in their queues", kicked, None, dry_run=dry_run, as_json=as_json)
        return tell_not_waiting(admin, others, queue) if others else DONE


def _kick_consumer(admin: BrokerAdmin, queue: str, consumer: str, *, dry_run: bool, as_json: bool) -> int:
    count = 0
    with stop_on_interrupt() as stopped, audited(admin, "kick", queue, dry_run=dry_run, consumer=consumer) as action:
        pages = admin.held_tags(queue, consumer)
        for tags in in_steps(pages, admin.overview_of(queue).unacked, "messages looked at", stopped):
            count += len(tags) if dry_run else len(admin.give_back(queue, tags, consumer=consumer))
            action.count = count
        was_interrupted = stopped()
    _tell("back in their queues", count, None, dry_run=dry_run, as_json=as_json)
    return interrupted() if was_interrupted else DONE


@dataclass(frozen=True, slots=True)
class Treatment:
    """What becomes of messages.

    Attributes:
        done: what they are then: `moved`.
        one: treats one by its id; returns whether it was there.
        page: treats some of a task; returns how many.
        audited: what the audit log calls it, and what it says besides.
    """

    done: str
    one: Callable[[str], bool]
    page: Callable[[list[str]], int]
    audited: tuple[str, dict[str, Any]]


def _each(
    admin: BrokerAdmin, chosen: Selection, treatment: Treatment, *, dry_run: bool, as_json: bool, losses: Losses | None = None
) -> int:  # fmt: skip
    """Treat the messages one by one by their ids, or those of a task in pages; say how many it were."""
    done = treatment.done
    if chosen.task is None:
        treat = (lambda message: is_waiting(admin.messages.find(message, chosen.queue))) if dry_run else treatment.one
        with searching(admin, chosen.queue):
            others = [message for message in chosen.ids if not treat(message)]
            _tell(done, len(chosen.ids) - len(others), losses, dry_run=dry_run, as_json=as_json)
            return tell_not_waiting(admin, others, chosen.queue) if others else DONE
    queue, count = chosen.queue or "", 0
    name, details = treatment.audited
    with stop_on_interrupt() as stopped, audited(admin, name, queue, dry_run=dry_run, task=chosen.task, **details) as action:
        overview = admin.overview_of(queue)
        pages = admin.waiting_tags(queue, chosen.task)
        for tags in in_steps(pages, overview.ready + overview.delayed, "messages looked at", stopped):
            count += len(tags) if dry_run or not tags else treatment.page(tags)
            action.count = count
        was_interrupted = stopped()
    _tell(done, count, losses, dry_run=dry_run, as_json=as_json)
    return interrupted() if was_interrupted else DONE


def _tell(done: str, count: int, losses: Losses | None, *, dry_run: bool, as_json: bool) -> None:
    verb = "would be" if dry_run else "are"
    lost = 0 if losses is None else losses.expected if dry_run else losses.so_far()
    if as_json:
        done = JSON_NAMES.get(done, done)
        print_json({done: count, "dry_run": dry_run} if losses is None else {done: count, "evicted": lost, "dry_run": dry_run})
        return
    click.echo(f"{count:,} message(s) {verb} {done}")
    if losses is not None and lost:
        click.echo(f"{lost:,} dead letter(s) {verb} deleted for good {losses.reason}")


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
