"""`celery-redis-plus dead-letters`: what died in a queue, and what becomes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.broker.arguments.names import is_pattern
from celery_redis_plus.cli.asking import (
    DURATION,
    audited,
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
from celery_redis_plus.cli.output import Progress, moment, print_fields, print_json, print_listing, tell, time_of
from celery_redis_plus.cli.queue_patterns import chosen_queues
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter, DeadLetterGroup
    from celery_redis_plus.broker.dead_letters.store import DeadLetter

#: Refusals that are printed one by one.
MAX_REFUSED_SHOWN = 10
GROUP_HEAD = ("COUNT", "TASK", "REASON", "ERROR", "FIRST (UTC)", "LAST (UTC)")
HEAD = ("TAG", "DIED (UTC)", "REASON", "FAILURES", "DELIVERIES", "TASK OR ROUTING KEY", "ERROR")

tags_argument = click.argument("tags", nargs=-1, metavar="[TAG]...")
all_option = click.option(
    "--all", "everything", is_flag=True, help="Every dead letter that the queue has now, if no filter is given."
)


def with_filter(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add `--task`, `--reason`, `--error`, `--release`, `--text`, `--older-than` and `--newer-than`: a `DeadLetterFilter`."""

    @task_option
    @click.option("--reason", metavar="REASON", help="Those that died of this: rejected, expired, delivery_limit, …")
    @click.option("--error", metavar="ERROR", help="Those with this exception: its class, or a pattern such as 'KeyError: *'.")
    @click.option("--release", metavar="RELEASE", help="Those that failed under this release of the application, or a pattern.")
    @click.option("--text", metavar="TEXT", help="Those with this text in their headers: in the task's arguments, or an id.")
    @click.option("--older-than", type=DURATION, metavar="TIME", help="Those that died at least this ago, such as 2h or 7d.")
    @click.option("--newer-than", type=DURATION, metavar="TIME", help="Those that died less than this ago, such as 15m.")
    @functools.wraps(command)
    def run(
        *arguments: Any, task: str | None, reason: str | None, error: str | None, text: str | None,
        release: str | None, older_than: float | None, newer_than: float | None, **options: Any,
    ) -> int | None:  # fmt: skip
        from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter

        return command(*arguments, wanted=DeadLetterFilter(task, reason, older_than, newer_than, error, text, release), **options)

    return run


@click.group(short_help="List, replay or delete dead letters.")
def command() -> None:
    """List the dead letters of a queue, look at one, put them back to work, or delete them.

    A dead letter is a message that was rejected, that expired, or whose delivery failed too often, in a queue without a
    dead-letter exchange. TAG is its tag, the first column of the list.
    """


@command.command("list")
@with_target
@click.argument("queue")
@with_filter
@click.option("--newest", is_flag=True, help="The last one first.")
@limit_option
@json_option
def list_(target: Target, *, queue: str, newest: bool, limit: int, as_json: bool, wanted: DeadLetterFilter) -> None:
    """List them, the longest dead first.

    --json prints one object a line, with headers and body.
    """
    from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter

    with target.admin() as admin:
        # All tags are read only where a filter selects.
        if wanted == DeadLetterFilter():
            admin.check_queue(queue)
            found = admin.dead_letters.page(queue, 0, limit, newest=newest)
        else:
            pages = admin.search_dead_letters(queue, wanted, newest=newest).pages()
            found = list(islice((letter for _, page in pages for letter in page), limit))
        print_listing(found, functools.partial(described, admin=admin), HEAD, _row, as_json=as_json)
        if not as_json:
            click.echo(f"{len(found):,} of {admin.dead_letters.count(queue):,} dead letters of queue {queue!r}")


@command.command()
@with_target
@click.argument("queue")
@with_filter
@json_option
def groups(target: Target, *, queue: str, as_json: bool, wanted: DeadLetterFilter) -> int:
    """Count them by task, reason and class of error, the largest group first."""
    from celery_redis_plus.broker.dead_letters.search import grouped

    with target.admin() as admin, stop_on_interrupt() as stopped:
        search = admin.search_dead_letters(queue, wanted)
        pages = in_steps(search.pages(), len(search.tags), "dead letters looked at", stopped)
        found = grouped(letter for page in pages for letter in page)
        was_interrupted = stopped()
    print_listing(found, _group, GROUP_HEAD, lambda one: list(_group_row(one)), as_json=as_json)
    return interrupted() if was_interrupted else DONE


def _group(one: DeadLetterGroup) -> dict[str, Any]:
    return {
        "count": one.count, "task": one.task, "reason": one.reason, "error": one.error, "first": time_of(one.first_ms),
        "last": time_of(one.last_ms), "example": one.example,
    }  # fmt: skip


def _group_row(one: DeadLetterGroup) -> Iterator[Any]:
    yield from (one.count, one.task, one.reason, one.error, moment(one.first_ms), moment(one.last_ms))


@command.command()
@with_target
@click.argument("queue")
@click.argument("tag")
@json_option
def show(target: Target, *, queue: str, tag: str, as_json: bool) -> int:
    """Show one: why and when it died, its last error, its headers with x-death, its properties and its body."""
    with target.admin() as admin:
        admin.check_queue(queue)
        found = admin.dead_letters.read(queue, [tag])
        if not found:
            return _unknown([tag], queue)
        shown = described(found[0], admin)
    if as_json:
        print_json(shown)
        return DONE
    headers, properties = shown.pop("headers"), shown.pop("properties")
    nested = [(f"headers.{name}", value) for name, value in headers.items()]
    nested += [(f"properties.{name}", value) for name, value in properties.items()]
    print_fields([*shown.items(), *nested])
    return DONE


@command.command()
@with_target
@click.argument("queue")
@tags_argument
@all_option
@with_filter
@click.option(
    "--to", metavar="QUEUE", help="To this queue instead of their own. Undelivered ones go where they were published to."
)
@dry_run_option
@json_option
def replay(
    target: Target, *, queue: str, tags: tuple[str, ...], everything: bool, to: str | None, dry_run: bool, as_json: bool,
    wanted: DeadLetterFilter,
) -> int:  # fmt: skip
    """Put them back to work, with their priority and fresh counters: those named, or those that the filters select. QUEUE is a
    name, or without tags a pattern such as 'shop.*'.

    Each one moves in one step. After Ctrl-C the same line replays the rest; none is replayed twice.
    """
    _check_choice(tags, wanted, everything=everything)
    status = DONE
    with target.admin() as admin, stop_on_interrupt() as stopped:
        names = [queue] if tags or not is_pattern(queue) else chosen_queues(admin, [queue])
        for name in names:
            replay = _Replay(to, dry_run=dry_run, name_missing=bool(tags))
            total, pages = _selected(admin, name, tags, wanted, replay.unknown)
            with audited(admin, "replay", name, dry_run=dry_run, **_filters(tags, wanted), to=to) as action:
                for page in in_steps(pages, total, "dead letters looked at", stopped):
                    replay.page(admin, page)
                    action.count = replay.replayed
            status = max(status, _tell_replay(replay, name, dry_run=dry_run, as_json=as_json))
            if stopped():
                return interrupted()
    return status


def _tell_replay(replay: _Replay, queue: str, *, dry_run: bool, as_json: bool) -> int:
    """Say what has become of the dead letters of a queue; return the exit status."""
    told = ("replayed", "are back to work", "would be replayed")
    _tell(*told, queue, replay.replayed, dry_run=dry_run, as_json=as_json, refused=replay.refused)
    if replay.refused:
        complain(f"{replay.refused:,} dead letter(s) stay where they are")
    known = _unknown(replay.unknown, queue) if replay.unknown else DONE
    return FAILED if replay.refused else known


class _Replay:
    """What has become of the dead letters so far."""

    def __init__(self, to: str | None, *, dry_run: bool, name_missing: bool) -> None:
        self._to = to
        self._dry_run = dry_run
        self._name_missing = name_missing
        self.replayed, self.refused = 0, 0
        self.unknown: list[str] = []

    def page(self, admin: BrokerAdmin, letters: list[DeadLetter]) -> None:
        if self._dry_run:
            self.replayed += len(letters)
            return
        for letter, outcome in zip(letters, admin.replay_page(letters, self._to), strict=True):
            if isinstance(outcome, Exception):
                self.refused += 1
                if self.refused <= MAX_REFUSED_SHOWN:
                    complain(str(outcome))
            elif outcome:
                self.replayed += 1
            elif self._name_missing:
                self.unknown.append(letter.tag)


@command.command()
@with_target
@click.argument("queue")
@tags_argument
@all_option
@with_filter
@dry_run_option
@yes_option
@json_option
def delete(
    target: Target, *, queue: str, tags: tuple[str, ...], everything: bool, dry_run: bool, yes: bool, as_json: bool,
    wanted: DeadLetterFilter,
) -> int:  # fmt: skip
    """Delete them for good: those named, or those that the filters select. Asks first, except for those that are named."""
    _check_choice(tags, wanted, everything=everything)
    deleted = 0
    unknown: list[str] = []
    with target.admin() as admin, stop_on_interrupt() as stopped:
        total, pages = _selected(admin, queue, tags, wanted, unknown)
        if not tags and not dry_run:
            which = "" if wanted == type(wanted)() else " that the filters select"
            confirm(f"Delete the dead letters of queue {queue!r}{which} (of {total:,})?", yes=yes)
        with audited(admin, "delete dead letters", queue, dry_run=dry_run, **_filters(tags, wanted)) as action:
            for page in in_steps(pages, total, "dead letters looked at", stopped):
                deleted += len(page) if dry_run else admin.dead_letters.delete(queue, [letter.tag for letter in page])
                action.count = deleted
        was_interrupted = stopped()
    _tell("deleted", "are deleted", "would be deleted", queue, deleted, dry_run=dry_run, as_json=as_json)
    if was_interrupted:
        return interrupted()
    return _unknown(unknown, queue) if unknown else DONE


@command.command()
@with_target
@click.argument("queue")
@dry_run_option
@yes_option
@json_option
def purge(target: Target, *, queue: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete all of the queue's for good, without looking at them. Memory is freed in short steps."""
    with target.admin() as admin:
        admin.check_queue(queue)
        count = admin.dead_letters.count(queue)
        if not dry_run:
            confirm(f"Delete all {count:,} dead letters of queue {queue!r}?", yes=yes)
            with Progress(count, "dead letters freed") as progress:
                count = admin.dead_letters.purge(queue, progress.step)
    _tell("deleted", "are deleted", "would be deleted", queue, count, dry_run=dry_run, as_json=as_json)


def _filters(tags: Sequence[str], wanted: DeadLetterFilter) -> dict[str, Any]:
    """Return what the audit log says of a choice of dead letters."""
    return {"ids": " ".join(tags) or None, **{key: value for key, value in asdict(wanted).items() if value is not None}}


def _check_choice(tags: tuple[str, ...], wanted: DeadLetterFilter, *, everything: bool) -> None:
    filtered = wanted != type(wanted)()
    if tags and (everything or filtered):
        raise click.UsageError(f"{tags[0]} with --all or a filter: allowed are either tags, or --all and filters")
    if not (tags or everything or filtered):
        filters = "--task, --reason, --error, --release, --text, --older-than, --newer-than"
        raise click.UsageError(f"nothing is selected; allowed: tags, --all, {filters}")


def _selected(
    admin: BrokerAdmin, queue: str, tags: tuple[str, ...], wanted: DeadLetterFilter, unknown: list[str]
) -> tuple[int, Iterator[tuple[int, list[DeadLetter]]]]:  # fmt: skip
    """Return how many are to be looked at, and the pages of those that are selected; tags that are none go to `unknown`."""
    if not tags:
        search = admin.search_dead_letters(queue, wanted)
        return len(search.tags), search.pages()
    admin.check_queue(queue)
    found = admin.dead_letters.read(queue, tags)
    unknown += sorted(set(tags) - {letter.tag for letter in found})
    return len(tags), iter([(len(tags), found)])


def _row(letter: DeadLetter) -> list[Any]:
    what = letter.task or letter.routing_key
    error = None if letter.failure is None else letter.failure.text.splitlines()[0]
    return [letter.tag, moment(letter.died_ms), letter.reason, letter.failures, letter.deliveries, what, error]


def described(letter: DeadLetter, admin: BrokerAdmin) -> dict[str, Any]:
    """Return a dead letter as `--json` shows it."""
    return {
        "tag": letter.tag,
        "queue": letter.queue,
        "reason": letter.reason,
        "error": None if letter.failure is None else letter.failure.text,
        "traceback": None if letter.failure is None else letter.failure.traceback or None,
        "release": None if letter.failure is None else letter.failure.release or None,
        "died": time_of(letter.died_ms),
        "failures": letter.failures,
        "deliveries": letter.deliveries,
        "content_type": letter.content_type,
        "content_encoding": letter.content_encoding,
        "headers": letter.death_headers,
        "properties": letter.properties,
        "body": admin.dead_letters.body(letter),
    }


def _tell(
    name: str, done: str, would: str, queue: str, count: int, *, dry_run: bool, as_json: bool, **more: int
) -> None:  # fmt: skip
    text = f"{count:,} dead letter(s) of queue {queue!r} {would if dry_run else done}"
    tell({"queue": queue, name: count, **more, "dry_run": dry_run}, text, as_json=as_json)


def _unknown(tags: list[str], queue: str) -> int:
    for tag in tags:
        complain(f"queue {queue!r} has no dead letter {tag!r}")
    return FAILED
