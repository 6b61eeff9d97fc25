"""The demo's console on a terminal: colours, tables and progress bars by rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from celery_redis_plus.demo.console import Progress
    from celery_redis_plus.demo.expectations import Expectation


class RichConsole:
    """See `console.Console`. All texts are printed as they are: rich's markup in them has no meaning."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def scenario(self, title: str, text: str) -> None:
        """Print a rule with the title, and the text."""
        self._console.print()
        self._console.rule(Text(title, style="bold cyan"), align="left")
        self._console.print(Text(text))

    def say(self, text: str) -> None:
        """Print the text, indented."""
        self._indented(Text(text))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print the table."""
        table = Table(header_style="bold")
        for index, column in enumerate(columns):
            table.add_column(Text(column), justify="right" if index else "left")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._indented(table)

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Progress]:
        """Show a bar."""
        bar = Bar(
            TextColumn("  {task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        with bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.update(task, completed=done)

    def expectation(self, expectation: Expectation) -> None:
        """Print the expectation behind a mark."""
        mark = Text("✓ ", style="bold green") if expectation.holds else Text("✗ FALSE ", style="bold red")
        measured = Text(expectation.measured, style="bold green" if expectation.holds else "bold red")
        self._indented(mark + Text(f"{expectation.text}: ") + measured + Text(f" (must be {expectation.required})", style="dim"))

    def log(self, source: str, line: str) -> None:
        """Print the line behind its source."""
        self._console.print(Text(f"  {source} | {line}", style="dim"), soft_wrap=True)

    def verdict(self, text: str, good: bool) -> None:
        """Print the text in a frame."""
        self._console.print()
        self._console.print(Panel(Text(text), border_style="green" if good else "red", expand=False))

    def _indented(self, what: Text | Table) -> None:
        self._console.print(Padding.indent(what, 2))
