"""What the commands print: tables for people, JSON for programs, the progress of what takes long."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from celery_redis_plus.admin.formatting import visible

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.listing import ListedMessage

T = TypeVar("T")
#: Seconds between two lines of progress, on a terminal (which shows the last one only) and in a log.
TERMINAL_EVERY_S, LOG_EVERY_S = 0.1, 10.0


def print_json(value: Any) -> None:
    """Print one JSON object on a line of its own."""
    click.echo(json.dumps(value, default=_plain))


def tell(value: Any, text: str, *, as_json: bool) -> None:
    """Print what was done, as a JSON object or as a sentence."""
    if as_json:
        print_json(value)
    else:
        click.echo(text)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        # What is no text is shown with escapes.
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def has_colours() -> bool:
    """Return whether colours may be printed: on a terminal that has some, and not with `NO_COLOR` (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def greyed(*, when: bool) -> Iterator[None]:
    """Print what is printed meanwhile in grey, where `when` says so and colours may be printed."""
    if not (when and has_colours()):
        yield
        return
    click.echo(click.style("", dim=True, reset=False), nl=False)
    try:
        yield
    finally:
        click.echo(click.style(""), nl=False)


def print_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under their head; numbers are on the right, None is `-`. Texts are escaped by `visible`."""
    rows = [list(row) for row in rows]
    table = [list(map(visible, head)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    right = [_is_numeric([row[at] for row in rows]) for at in range(len(head))]
    for cells in table:
        line = (
            cell.rjust(width) if number else cell.ljust(width) for cell, width, number in zip(cells, widths, right, strict=True)
        )
        click.echo("  ".join(line).rstrip())


def print_listing(
    found: Iterable[T], described: Callable[[T], Any], head: Sequence[str], row: Callable[[T], Sequence[Any]], *, as_json: bool
) -> None:  # fmt: skip
    """Print each of `found` as a JSON object on a line of its own, or all of them as the rows of a table."""
    if as_json:
        for one in found:
            print_json(described(one))
    else:
        print_table(head, map(row, found))


def _is_numeric(column: Sequence[Any]) -> bool:
    there = [value for value in column if value is not None]
    return bool(there) and all(isinstance(value, int | float) for value in there)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else visible(str(value))


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print a name and a value a line, without those that are None or empty. Each line is escaped by `visible`."""
    shown = [(visible(name), value) for name, value in fields if value not in (None, "")]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        first, *rest = map(visible, _text(value).splitlines() or [""])
        click.echo(f"{name.ljust(width)}  {first}".rstrip())
        for line in rest:
            click.echo(f"{'':{width}}  {line}")


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    return str(_plain(value) if isinstance(value, bytes) else value)


def time_of(ms: int | None) -> datetime | None:
    """Return a time of the server, which is in ms since the epoch, in UTC."""
    # Not at the top: `--help` prints no time.
    from celery_redis_plus.broker.arguments.eta import time_of_ms

    return None if ms is None else time_of_ms(ms)


def moment(ms: int | None) -> str | None:
    """Return a time of the server for people."""
    at = time_of(ms)
    return None if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def listed(one: ListedMessage) -> dict[str, Any]:
    """Return a message of a listing as JSON has it; its time is called by its state."""
    name = {"ready": "since", "delayed": "due", "unacked": "lease_ends"}[one.state]
    claimed = {"since": time_of(one.claimed_ms)} if one.state == "unacked" else {}
    return {
        "id": one.tag,
        "queue": one.queue,
        "state": one.state,
        **claimed,
        name: time_of(one.time_ms),
        "priority": one.priority,
        "deliveries": one.deliveries,
        "failures": one.failures,
        "bytes": one.size,
        "task": one.task,
        "task_id": one.task_id,
        "holder": one.holder,
        "headers": one.headers,
        "properties": one.properties,
    }


class Progress:
    """Tells on stderr how far a long command is: one line that changes on a terminal, else a line now and then.

    Use it as a context manager; nothing is shown of what is over within a moment.
    """

    def __init__(self, total: int, what: str) -> None:
        self.done = 0
        self._total = total
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._every_s = TERMINAL_EVERY_S if self._terminal else LOG_EVERY_S
        self._next = time.monotonic() + self._every_s
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown and self._terminal:
            self._show()
            click.echo(err=True)

    def step(self, count: int) -> None:
        """Note that `count` more are done."""
        self.done += count
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every_s
            self._shown = True
            self._show()

    def _show(self) -> None:
        # Others may have added or taken some meanwhile.
        percent = min(100, self.done * 100 // max(1, self._total))
        line = f"{self.done:,} of {self._total:,} {self._what} ({percent} %)"
        click.echo(f"\r{line}" if self._terminal else line, err=True, nl=not self._terminal)
