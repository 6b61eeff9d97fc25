"""Puts figures of docs/benchmarks.md where other pages repeat them, so that all of them are of one run."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

BENCHMARKS = Path(__file__).parent / "benchmarks.md"
#: Pages that repeat figures of it.
WITH_FIGURES = ("README.md", *(f"docs/{page}.md" for page in ("design/architecture", "comparison", "sizing")))
#: The table of the README: what a row is called there, the figures of docs/benchmarks.md behind it, and their unit.
ROWS = {
    "client CPU to consume and acknowledge a message, prefetch 100": (("consume + ack, prefetch 100: client CPU",), " µs"),
    "Celery worker, no-op tasks: solo, prefork, threads": (
        ("Celery solo: rate", "Celery prefork -c2: rate", "Celery threads -c4: rate"),
        " a second",
    ),
    "one consumer on 100 queues, client CPU a message": (("100 queues on one consumer: client CPU",), " µs"),
    "broadcasts to 10 subscribers, acknowledged": (("fanout to 10 that ack: delivered",), " a second"),
    "client CPU of a publish": (("publish: client CPU",), " µs"),
    "server CPU of a publish": (("publish: server CPU",), " µs"),
    "server CPU to consume and acknowledge a message, prefetch 100": (("consume + ack, prefetch 100: server CPU",), " µs"),
}
TABLE_HEAD = "| | kombu's own Redis transport | celery-redis-plus |\n|---|---|---|\n"
_TABLE = re.compile(re.escape(TABLE_HEAD) + r"(?=\| (?:client|server) CPU)(?:\|.*\n)+")
_COSTS = re.compile(r"[\d.]+ µs of CPU instead of [\d.]+ µs")
#: The table of docs/sizing.md: its rows, and those of the section "A full server" behind them.
_FULL = {
    "publishes alone": ("publish",),
    "messages from publish to ack, prefetch 1": ("publish to ack, prefetch 1",),
    "messages from publish to ack, prefetch 10, late acks; early acks": (
        "publish to ack, prefetch 10, late acks",
        "publish to ack, prefetch 10, early acks",
    ),
}
_MORE = re.compile(r"(takes\s+about\s+)[\d.]+(\s+µs\s+of\s+server\s+time\s+more\s+than\s+the\s+LPUSH)")


@cache
def results() -> dict[str, tuple[str, str]]:
    """Return the figures of the last run: of kombu's Redis transport, and ours."""
    rows = BENCHMARKS.read_text(encoding="utf-8").partition("<!-- results: ")[2].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| ")]
    return {row[0]: (row[2], row[3]) for row in cells if len(row) > 3}


@cache
def full_server() -> dict[str, int]:
    """Return how many messages a second a full server carries, by the phase."""
    section = BENCHMARKS.read_text(encoding="utf-8").partition("\n## A full server")[2].partition("\n## ")[0]
    rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in section.splitlines() if "/s |" in row)
    return {row[0]: int(row[2].removesuffix("/s").replace(",", "")) for row in rows}


def figures_in(text: str) -> str:
    """Return the text of a page with the figures as they are now. Raises KeyError where the run lacks one."""
    kombu, ours = results()["publish: server CPU"]
    text = _TABLE.sub(lambda _: TABLE_HEAD + "".join(map(_row, ROWS)), text)
    text = _COSTS.sub(f"{kombu} µs of CPU instead of {ours} µs", text)
    for name, phases in _FULL.items():
        shown = "; ".join(f"{round(full_server()[phase], -3):,}" for phase in phases)
        text = re.sub(rf"^\| {re.escape(name)} \| [\d,; ]+ \|", f"| {name} | {shown} |", text, flags=re.MULTILINE)
    return _MORE.sub(rf"\g<1>{float(ours) - float(kombu):.0f}\g<2>", text)


def _row(name: str) -> str:
    labels, unit = ROWS[name]
    of_kombu, of_ours = (", ".join(results()[label][at] for label in labels) for at in (0, 1))
    return f"| {name} | {of_kombu}{unit} | {of_ours}{unit} |\n"
