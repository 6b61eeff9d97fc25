"""The demo's output: colours and progress bars on a terminal, plain lines for logs."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from celery_redis_plus.demo.expectations import Expectation

#: Of a line of text.
WIDTH = 100

#: Sets how much of a piece of work is done.
Progress = Callable[[int], None]


class Console:
    """Prints to stdout. Without a terminal click prints no colours."""

    def __init__(self, *, plain: bool = False) -> None:
        """Print `plain` lines also on a terminal: no colours, nothing overwritten."""
        self._plain = plain or not sys.stdout.isatty()

    def scenario(self, title: str, text: str) -> None:
        """Print a scenario's title, underlined, and what it will show."""
        self._echo(f"\n{title}\n{'-' * len(title)}", fg="cyan", bold=True)
        self._echo(textwrap.fill(text, WIDTH))

    def say(self, text: str) -> None:
        """Print a remark, indented."""
        self._echo(f"  {text}")

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Progress]:
        """Show how far a piece of work is; what the context gives is called with what is done."""
        if self._plain:
            self.say(f"{label}: {total:,} …")
            yield lambda _: None
            return
        with click.progressbar(length=total, label=f"  {label}", show_pos=True) as bar:
            yield lambda done: bar.update(done - bar.pos)

    def expectation(self, expectation: Expectation) -> None:
        """Print the expectation behind "ok" or "FALSE"."""
        self._echo(f"  {'ok   ' if expectation.holds else 'FALSE'} {expectation}", fg=None if expectation.holds else "red")

    def log(self, source: str, line: str) -> None:
        """Print a line of a worker's log."""
        self._echo(f"  {source} | {line}", dim=True)

    def verdict(self, text: str, good: bool) -> None:
        """Print the final result."""
        self._echo(f"\n{text}", fg="green" if good else "red", bold=True)

    def _echo(self, text: str, **style: Any) -> None:
        click.echo(click.style(text, **style) if style else text, color=False if self._plain else None)
