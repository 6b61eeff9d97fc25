"""`celery-redis-plus migrate`: take over the messages of kombu's own Redis transport, and give them back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.admin.formatting import span
from celery_redis_plus.cli.asking import DURATION, complain, dry_run_option, interrupted, json_option, stop_on_interrupt
from celery_redis_plus.cli.exit_status import DONE, FAILED
from celery_redis_plus.cli.outages import Outage
from celery_redis_plus.cli.output import Progress, print_listing
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.migration.migration import Migration
    from celery_redis_plus.migration.report import Moved, Report
    from celery_redis_plus.migration.status import MigrationStatus

#: Seconds between two passes of --follow that found nothing.
PAUSE_S = 0.2
HEAD = ("QUEUE", "KOMBU WAITING", "KOMBU UNACKED", "KOMBU SCHEDULED", "LAST DUE", "READY", "DELAYED", "UNACKED")
MOVED_HEAD = ("QUEUE", "READY", "DELAYED", "OF THEM UNACKED", "LEFT")


@click.command(short_help="Take over the messages of kombu's Redis transport, or give them back.")
@with_target
@click.option("--from", "source", metavar="URL", help="Where kombu's data is, if not in the broker's database.")
@click.option(
    "--from-prefix", "source_prefix", metavar="TEXT", help="kombu's global_keyprefix, if not the broker's; with --from."
)
@click.option("--to", metavar="URL", help="With --reverse: where kombu's data shall be, if not in the broker's database.")
@click.option("--to-prefix", metavar="TEXT", help="kombu's global_keyprefix there, if not the broker's; with --to.")
@click.option("-Q", "--queue", "queues", multiple=True, metavar="QUEUE", help="This queue only; may be repeated.")
@click.option("--status", is_flag=True, help="Show what is left where, and move nothing.")
@click.option("--follow", is_flag=True, help="Go on taking what is published to kombu's lists, until Ctrl-C.")
@click.option("--reverse", is_flag=True, help="The other way: give what waits here to kombu's lists.")
@click.option(
    "--take-unacked", is_flag=True, help="Also take what kombu's workers have. Only when all of them have ended."
)  # fmt: skip
@click.option(
    "--older-than", type=DURATION, default=None, metavar="DURATION",
    help="With --take-unacked: only what was delivered that long ago.",
)  # fmt: skip
@click.option(
    "--priorities", type=click.Choice(["keep", "invert"]), help="What becomes of priorities where the two orders differ."
)  # fmt: skip
@click.option("--declare", multiple=True, metavar="QUEUE", help="Declare this queue here, without arguments; may be repeated.")
@dry_run_option
@json_option
def command(target: Target, **given: Any) -> int:
    """Move the messages of an installation of kombu's own Redis transport into this broker's queues.

    Waiting tasks of all priorities, and tasks with an eta, which become delayed messages. Each message is moved in one atomic
    step, so the command may be ended at any moment, and the same line again does the rest. Tasks that kombu's workers have stay
    with them: stop a worker, and they return to its lists.
    """
    wanted = _Wanted(**given)
    wanted.check()
    with (
        target.admin() as admin,
        admin.migration(
            target.kombu_options(), wanted.priorities, source=wanted.elsewhere, source_prefix=wanted.prefix_there
        ) as migration,
    ):
        names = migration.queues(wanted.queues)
        if wanted.status or wanted.dry_run:
            _print_status(migration.status(names), wanted)
            return DONE
        if not wanted.reverse:
            target.declare(names)
            migration.declare(wanted.declare)
        direction = "to kombu's lists" if wanted.reverse else "from kombu's lists"
        with _stop_on_signals() as stopped, admin.audit.action("migrate", in_steps=True, direction=direction) as action:
            report = _run(migration, wanted, stopped)
            action.count = sum(one.moved for one in report.queues)
        return _end(report, wanted, stopped)


def _end(report: Report, wanted: _Wanted, stopped: Callable[[], bool]) -> int:
    """Print what was done; return the exit status."""
    _print_report(report, as_json=wanted.as_json)
    if report.left:
        return FAILED
    return interrupted() if stopped() and not wanted.follow else DONE


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The options of the command."""

    source: str | None
    source_prefix: str | None
    to: str | None
    to_prefix: str | None
    queues: tuple[str, ...]
    status: bool
    follow: bool
    reverse: bool
    take_unacked: bool
    older_than: float | None
    priorities: Any
    declare: tuple[str, ...]
    dry_run: bool
    as_json: bool

    def check(self) -> None:
        """Raise click.UsageError where options exclude one another."""
        if self.older_than is not None and not self.take_unacked:
            raise click.UsageError("--older-than is for unacked messages; allowed with --take-unacked")
        if self.follow and (self.status or self.dry_run):
            raise click.UsageError("--follow moves messages; allowed without --status and --dry-run")
        if self.source_prefix is not None and self.source is None:
            raise click.UsageError("--from-prefix is for another database, or the same by its URL; allowed with --from")
        if self.reverse and self.source is not None:
            raise click.UsageError("--reverse gives messages to kombu; allowed without --from, with --to for another database")
        if self.to is not None and not self.reverse:
            raise click.UsageError("--to names kombu's database for the way back; allowed with --reverse")
        if self.to_prefix is not None and self.to is None:
            raise click.UsageError("--to-prefix is for another database, or the same by its URL; allowed with --to")
        if self.reverse and (self.take_unacked or self.declare):
            raise click.UsageError(
                "--reverse gives this broker's messages to kombu; allowed without --take-unacked and --declare: stop this "
                "broker's workers, and their messages return to the queues"
            )

    @property
    def elsewhere(self) -> str | None:
        """The URL of kombu's database; None: it is the broker's."""
        return self.to if self.reverse else self.source

    @property
    def prefix_there(self) -> str | None:
        """Kombu's `global_keyprefix` there; None: it is the broker's."""
        return self.to_prefix if self.reverse else self.source_prefix

    @property
    def unacked_age_s(self) -> float | None:
        """Unacked messages that were delivered that long ago are taken as well; None: none are."""
        return (self.older_than or 0.0) if self.take_unacked else None


@contextmanager
def _stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Let the first SIGINT or SIGTERM end the work between two steps."""
    with stop_on_interrupt() as stopped:
        before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            yield stopped
        finally:
            signal.signal(signal.SIGTERM, before)


def _run(migration: Migration, wanted: _Wanted, stopped: Callable[[], bool]) -> Report:
    """Make passes, with --follow until `stopped` says so, else one."""
    importer, exporter = migration.importer(), migration.exporter()

    def move() -> Iterator[int]:
        if wanted.reverse:
            return migration.give(exporter, wanted.queues, stopped)
        return migration.take(importer, wanted.queues, wanted.unacked_age_s, stopped)

    report = exporter.report if wanted.reverse else importer.report
    return _repeat(move, report, _expected(migration, wanted), wanted, stopped)


def _repeat(
    move: Callable[[], Iterator[int]], report: Report, expected: int, wanted: _Wanted, stopped: Callable[[], bool]
) -> Report:  # fmt: skip
    try:
        with Progress(expected, "messages") as progress:
            _passes(move, report, progress, wanted, stopped)
    except Exception:
        # What was moved stays moved, whatever has ended the rest.
        _print_report(report, as_json=wanted.as_json)
        raise
    return report


def _passes(
    move: Callable[[], Iterator[int]], report: Report, progress: Progress, wanted: _Wanted, stopped: Callable[[], bool]
) -> None:  # fmt: skip
    """Make one pass, or with --follow one after the other, also after a time in which the broker was away."""
    outage = Outage()
    while True:
        moved = 0
        report.forget_left()
        with outage if wanted.follow else nullcontext():
            for count in move():
                progress.step(count)
                moved += count
        if stopped() or not wanted.follow:
            return
        if not moved or outage.lasts:
            _pause(outage.pause_s if outage.lasts else PAUSE_S, stopped)


def _pause(seconds: float, stopped: Callable[[], bool]) -> None:
    """Sleep until the next pass; a signal ends it soon."""
    until = time.monotonic() + seconds
    while not stopped() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, PAUSE_S))


def _expected(migration: Migration, wanted: _Wanted) -> int:
    """Return how many messages the first pass may move."""
    return sum(_movable(one, wanted) for one in migration.status(migration.queues(wanted.queues)))


def _movable(one: MigrationStatus, wanted: _Wanted) -> int:
    if wanted.reverse:
        return (one.here_ready or 0) + (one.here_delayed or 0)
    return one.left if wanted.take_unacked else one.left - one.unacked


def _print_report(report: Report, *, as_json: bool) -> None:
    print_listing(report.queues, lambda one: {**asdict(one), "moved": one.moved}, MOVED_HEAD, _moved_row, as_json=as_json)
    if not as_json:
        for one in report.queues:
            for reason in one.reasons:
                complain(f"queue {one.queue!r}: {reason}")


def _moved_row(one: Moved) -> list[Any]:
    return [one.queue, one.ready, one.delayed, one.unacked, one.left]


def _print_status(found: list[MigrationStatus], wanted: _Wanted) -> None:
    print_listing(found, lambda one: {**asdict(one), "left": one.left}, HEAD, _row, as_json=wanted.as_json)
    if wanted.dry_run and not wanted.as_json:
        click.echo(f"{sum(_movable(one, wanted) for one in found):,} message(s) would be moved")


def _row(one: MigrationStatus) -> list[Any]:
    return [
        one.queue, one.left - one.unacked, one.unacked, one.scheduled, span(one.last_due_s), one.here_ready, one.here_delayed,
        one.here_unacked,
    ]  # fmt: skip
