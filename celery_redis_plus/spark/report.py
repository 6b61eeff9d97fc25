"""One HTML file that needs nothing else: tables, and charts that matplotlib draws as SVG into the page."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

from celery_redis_plus.spark.losses import sentence

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Text stays text: it can be searched and copied, and takes a third of the room.
mpl.rcParams["svg.fonttype"] = "none"

#: More lines than this in a chart cannot be told apart: the busiest queues are drawn.
MAX_LINES = 8

TITLES = {
    "losses": "Lost events",
    "incomplete": "Messages whose first events are missing",
    "states": "Messages by state",
    "by_queue": "Queues: outcome, wait and run",
    "by_task": "Tasks: outcome, wait and run",
    "failures": "Failures and retries by task and reason",
    "slowest": "Slowest messages",
    "most_repeated": "Most repeated messages",
    "dead_letters": "Dead letters",
    "workers": "Deliveries by worker",
    "lateness": "Lateness of tasks with an eta, seconds",
    "comparison": "Comparison with the other period",
    "anomalies": "Anomalies",
}

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1c2430}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem;border-bottom:1px solid #d5dae2;padding-bottom:.2rem}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
th,td{padding:.25rem .6rem;text-align:left;border-bottom:1px solid #e6e9ee;white-space:nowrap}
td.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}
.none{color:#68707c}.warning{border-left:4px solid #b42318;padding-left:.8rem;font-weight:600}
"""


def render(figures: Mapping[str, pd.DataFrame], *, title: str = "Celery tasks", note: str = "") -> str:
    """Return the page.

    Args:
        figures: what `summaries` returns.
        title: the page's heading.
        note: a line below it, such as the period.
    """
    charts = {name: _svg(draw, figures) for name, draw in CHARTS.items()}
    parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(note)} Made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.</p>"]
    if text := warning(figures):
        parts.append(f'<p class="warning">{html.escape(text)}</p>')
    parts += [f"<h2>{html.escape(name)}</h2>{chart}" for name, chart in charts.items()]
    parts += [f"<h2>{html.escape(heading)}</h2>{_table(figures[name])}" for name, heading in TITLES.items() if name in figures]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def warning(figures: Mapping[str, pd.DataFrame]) -> str:
    """Return a sentence about what the figures lack; '' where nothing is known to be missing."""
    losses, incomplete = figures["losses"], int(figures["incomplete"]["count"].sum())
    parts = [sentence((str(why), int(rows["count"].sum())) for why, rows in losses.groupby("why"))]
    if incomplete:
        parts.append(f"the first events of {incomplete:,} messages are missing")
    missing = ", ".join(part for part in parts if part)
    return f"These figures are incomplete: {missing}." if missing else ""


def save_figures(figures: Mapping[str, pd.DataFrame], directory: Path) -> list[Path]:
    """Write every figure as Parquet and as CSV into `directory`; return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, frame in figures.items():
        written += [directory / f"{name}.parquet", directory / f"{name}.csv"]
        frame.to_parquet(written[-2], index=False)
        frame.to_csv(written[-1], index=False)
    return written


def draw_throughput(axes: Axes, figures: Mapping[str, pd.DataFrame]) -> None:
    """Draw published, delivered, acked and failed messages a minute."""
    frame = figures["throughput"]
    for name in ("published", "delivered", "acked", "failed", "retried", "dead"):
        if frame[name].any() or name in {"published", "acked"}:
            axes.plot(frame["minute"], frame[name], label=name, linewidth=1.4)
    axes.set_ylabel("messages a minute")


def draw_backlog(axes: Axes, figures: Mapping[str, pd.DataFrame]) -> None:
    """Draw the ready messages of the busiest queues."""
    for queue, rows in _busiest(figures, "backlog"):
        axes.step(rows["minute"], rows["backlog"], where="post", label=queue, linewidth=1.4)
    axes.set_ylabel("ready messages")


def draw_waits(axes: Axes, figures: Mapping[str, pd.DataFrame]) -> None:
    """Draw the 95th percentile of the wait for a delivery, of the busiest queues."""
    for queue, rows in _busiest(figures, "waits"):
        known = rows.dropna(subset=["wait_p95_s"])
        axes.plot(known["minute"], known["wait_p95_s"], label=queue, linewidth=1.4)
    axes.set_ylabel("seconds, 95th percentile")


def draw_tasks(axes: Axes, figures: Mapping[str, pd.DataFrame]) -> None:
    """Draw wait and run of each task, median and 95th percentile."""
    frame = figures["by_task"].head(12).iloc[::-1]
    places = range(len(frame))
    for offset, name in ((0.2, "wait"), (-0.2, "run")):
        bars = [place + offset for place in places]
        axes.barh(bars, frame[f"{name}_p95_s"].fillna(0), height=0.36, label=f"{name}, 95th percentile", alpha=0.55)
        axes.plot(frame[f"{name}_p50_s"].fillna(0), bars, "|", color="black", markersize=9)
    axes.set_yticks(list(places), frame["task"])
    axes.set_xlabel("seconds (| is the median)")


CHARTS = {
    "Throughput": draw_throughput,
    "Backlog": draw_backlog,
    "Wait for a delivery": draw_waits,
    "Wait and run by task": draw_tasks,
}


def draw(figures: Mapping[str, pd.DataFrame], path: Path) -> None:
    """Draw all charts into one picture; its kind follows the file's ending, such as `.svg` or `.png`."""
    figure, every = plt.subplots(2, 2, figsize=(14, 8), layout="constrained")
    for axes, (name, painter) in zip(every.flat, CHARTS.items(), strict=True):
        _paint(axes, painter, figures)
        axes.set_title(name)
    figure.savefig(path)
    plt.close(figure)


def _svg(painter: Any, figures: Mapping[str, pd.DataFrame]) -> str:
    figure, axes = plt.subplots(figsize=(11, 3.4), layout="constrained")
    _paint(axes, painter, figures)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    plt.close(figure)
    # Without the XML head, the picture is an element of the page.
    return text.getvalue()[text.getvalue().index("<svg") :]


def _paint(axes: Axes, painter: Any, figures: Mapping[str, pd.DataFrame]) -> None:
    painter(axes, figures)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    else:
        axes.text(0.5, 0.5, "nothing in this period", transform=axes.transAxes, ha="center", color="#68707c")
    for label in axes.get_xticklabels():
        label.set_fontsize(8)


def _busiest(figures: Mapping[str, pd.DataFrame], name: str) -> list[tuple[str, Any]]:
    frame = figures[name]
    order = [queue for queue in figures["by_queue"]["queue"] if queue in set(frame["queue"])][:MAX_LINES]
    return [(queue, frame[frame["queue"] == queue]) for queue in order]


def _table(frame: pd.DataFrame) -> str:
    if frame.empty:
        return '<p class="none">None.</p>'
    head = "".join(f"<th>{html.escape(str(name).replace('_', ' '))}</th>" for name in frame.columns)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in frame.itertuples(index=False))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None or value != value:  # noqa: PLR0124 - NaN and NaT differ from themselves
        return '<td class="none">-</td>'
    if isinstance(value, float):
        return f'<td class="n">{value:,.3f}</td>'
    if hasattr(value, "strftime"):
        return f"<td>{value:%Y-%m-%d %H:%M:%S}</td>"
    if isinstance(value, str):
        return f"<td>{html.escape(value)}</td>"
    return f'<td class="n">{value:,}</td>'
