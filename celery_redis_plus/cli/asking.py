"""What the commands ask of the operator: options that several of them have, confirmations, and Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf, isnan
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_redis_plus.cli.exit_status import INTERRUPTED
from celery_redis_plus.cli.output import Progress

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.broker.queues.audit import Action

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


class Duration(click.ParamType[float]):
    """A length of time: seconds, or a number with its unit. The command gets seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; ends the command where `value` is none."""
        if isinstance(value, float):
            return value
        # Not at the top: `--help` converts nothing.
        from celery_redis_plus.broker.arguments.eta import MAX_DELAY_MS

        longest_s = MAX_DELAY_MS // 1000
        match = _DURATION.fullmatch(str(value))
        seconds = inf if match is None else float(match[1]) * _UNITS[match[2]]
        if seconds > longest_s:
            self.fail(
                f"'{value!s:.100}' is not allowed; allowed: a number with s, m, h or d (seconds without), such as 90 or 2h, "
                f"up to {longest_s // _UNITS['d']}d",
                param,
                ctx,
            )
        return seconds


class Seconds(click.FloatRange):
    """A number of seconds within bounds; NaN, which is within all of them for click, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; ends the command where `value` is no number, or out of range."""
        seconds: float = super().convert(value, param, ctx)
        if isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return seconds


DURATION = Duration()
#: What one list may show, far above what a server holds: beyond it, counting on fails in Python.
MAX_LIMIT = 1_000_000_000
#: Decorators for options that mean the same everywhere.
json_option: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
limit_option: Callable[[F], F] = click.option(
    "--limit", type=click.IntRange(1, MAX_LIMIT), default=100, show_default=True, metavar="N", help="How many at most."
)
task_option: Callable[[F], F] = click.option(
    "--task", metavar="TASK", help="Those of this task: its name, or a pattern such as 'shop.*'."
)
internal_option: Callable[[F], F] = click.option(
    "--internal", is_flag=True, help="With the queues that Celery has for itself: remote control, replies, events."
)
yes_option: Callable[[F], F] = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option: Callable[[F], F] = click.option("--dry-run", is_flag=True, help="Change nothing; print how many it would be.")


def argument_of(text: str) -> tuple[str, object]:
    """Return name and value of an argument, such as `x-rate-limit=50/m`; a value that is no JSON is a text, as `50/m` is."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is no argument; allowed: a name, =, and a value, such as x-rate-limit=50/m")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost; ends the command where the answer is no.

    Raises:
        click.UsageError: there is no terminal to ask on, and `--yes` is missing.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask on: confirm with --yes, or see --dry-run.")
    if not click.confirm(question, err=True):
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(1)


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C end a loop between two of its steps, and a second one at once; gives what tells of the first."""
    asked = threading.Event()

    def ask(_: int, __: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def in_steps(pages: Iterable[tuple[int, T]], total: int, what: str, stopped: Callable[[], bool]) -> Iterator[T]:
    """Yield the pages of something long, and tell how far it is; end between two of them when `stopped` says so.

    Args:
        pages: of each, how many of `what` it takes, and the page.
        total: of `what`.
        what: is looked at.
        stopped: of `stop_on_interrupt`.
    """
    with Progress(total, what) as progress:
        for looked_at, page in pages:
            yield page
            progress.step(looked_at)
            if stopped():
                return


def audited(
    admin: BrokerAdmin, name: str, queue: str, *, dry_run: bool, **details: Any
) -> AbstractContextManager[Action]:  # fmt: skip
    """Note what becomes of many messages of a queue, in all its steps, as one action; nothing of a `--dry-run`."""
    from celery_redis_plus.broker.queues.audit import Action

    return nullcontext(Action()) if dry_run else admin.audit.action(name, queue, in_steps=True, **details)


def complain(text: str) -> None:
    """Print a line on stderr, behind the name of the command."""
    click.echo(f"{click.get_current_context().command_path}: {text}", err=True)


def interrupted() -> int:
    """Say that Ctrl-C has ended a command between two of its steps, and return its exit status."""
    complain("interrupted; the same line again does the rest")
    return INTERRUPTED
