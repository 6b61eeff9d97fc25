"""The demo's output: the interface, and plain lines for logs. For terminals see `terminal.py`."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from celery_redis_plus.demo.expectations import Expectation

#: Of a line of plain text.
WIDTH = 100

#: Sets how much of a piece of work is done.
Progress = Callable[[int], None]


class Console(Protocol):
    """Where the demo prints."""

    def scenario(self, title: str, text: str) -> None:
        """Begin a scenario: its title, and what it will show."""

    def say(self, text: str) -> None:
        """Show a remark."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table; the first column to the left, the others to the right."""

    def progress(self, label: str, total: int) -> AbstractContextManager[Progress]:
        """Show how far a piece of work is; what the context gives is called with what is done."""

    def expectation(self, expectation: Expectation) -> None:
        """Show an expectation, and whether it is met."""

    def log(self, source: str, line: str) -> None:
        """Show a line of a worker's log; any thread may call it."""

    def verdict(self, text: str, good: bool) -> None:
        """Show the final result."""


class PlainConsole:
    """Plain lines that read well in a log: no colours, nothing is overwritten."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()

    def scenario(self, title: str, text: str) -> None:
        """Print the title, underlined, and the text."""
        self._print("", title, "-" * len(title), *textwrap.wrap(text, WIDTH))

    def say(self, text: str) -> None:
        """Print the text, indented."""
        self._print(f"  {text}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print the table with aligned columns."""
        widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
        for row in (columns, ["-" * width for width in widths], *rows):
            first, *others = (
                cell.rjust(width) if index else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            self._print("  " + "   ".join([first, *others]).rstrip())

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Progress]:
        """Print a line for each quarter."""
        quarters = [max(1, total * quarter // 4) for quarter in (1, 2, 3, 4)]

        def set_done(done: int) -> None:
            reached = 0
            while quarters and done >= quarters[0]:
                reached = quarters.pop(0)
            if reached:
                self._print(f"  {label}: {done:,} of {total:,}")

        yield set_done

    def expectation(self, expectation: Expectation) -> None:
        """Print the expectation behind "ok" or "FALSE"."""
        self._print(f"  {'ok   ' if expectation.holds else 'FALSE'} {expectation}")

    def log(self, source: str, line: str) -> None:
        """Print the line behind its source."""
        self._print(f"  {source} | {line}")

    def verdict(self, text: str, good: bool) -> None:  # noqa: ARG002 - no colours here
        """Print the text after an empty line."""
        self._print("", text)

    def _print(self, *lines: str) -> None:
        with self._lock:
            for line in lines:
                print(line, file=self._stream)
            self._stream.flush()
