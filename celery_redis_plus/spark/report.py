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
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark.losses import sentence
from celery_redis_plus.spark.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Text stays text: it can be searched and copied, and takes a third of the room.
mpl.rcParams["svg.fonttype"] = "none"
# Names are no formulas, whatever they have between two dollars.
mpl.rcParams["text.parse_math"] = False
# The same figures make the same picture.
mpl.rcParams["svg.hashsalt"] = "celery-redis-plus"

#: Characters of the name of a queue or a task in a chart.
LONGEST_LABEL = 40
#: More lines than this in a chart cannot be told apart: the busiest queues are drawn.
MAX_LINES = 8
LEGEND_COLUMNS = 4

TITLES = {
    "losses": "Lost events",
    "checks": "Checks of the tables",
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
a{color:inherit}td.n{text-align:right;font-variant-numeric:tabular-nums}svg{width:100%;height:auto}
.none{color:#68707c}.warning{border-left:4px solid #b42318;padding-left:.8rem;font-weight:600}
.chart{overflow-x:auto}.chart svg{min-width:44rem}
.headline{display:flex;flex-wrap:wrap;gap:.4rem 2rem;margin:1.2rem 0}.headline dt{font-size:13px;color:#68707c}
.headline dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums}
.headline small{display:block;font-size:12px;color:#68707c}
@media (prefers-color-scheme:dark){body{background:#14181f;color:#e3e7ee}h2{border-color:#3a4350}th,td{border-color:#2b323d}
.none,.headline dt,.headline small{color:#98a2b1}svg text{fill:#c9d0da!important}
svg [style*="stroke: #000000"]{stroke:#8d97a6!important}}
"""


def render(figures: Mapping[str, pd.DataFrame], *, title: str = "Celery tasks", note: str = "") -> str:
    """Return the page.

    Args:
        figures: what `summaries` returns.
        title: the page's heading.
        note: a line below it, such as the period.
    """
    charts = {name: _svg(name, draw, figures) for name, draw in CHARTS.items()}
    parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(note)} Made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.</p>"]
    if text := warning(figures):
        parts.append(f'<p class="warning">{html.escape(text)}</p>')
    parts.append(_headline(figures))
    parts += [f'<h2>{html.escape(name)}</h2><div class="chart">{chart}</div>' for name, chart in charts.items()]
    parts += [
        f'<h2 id="{name}">{html.escape(heading)}</h2>{_table(figures[name], *_links(name, figures))}'
        for name, heading in TITLES.items()
        if name in figures
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def warning(figures: Mapping[str, pd.DataFrame]) -> str:
    """Return a sentence about what the figures lack; '' where nothing is known to be missing."""
    incomplete = int(figures["incomplete"]["count"].sum())
    parts = (
        [sentence((str(why), int(count)) for why, count in figures["losses"].groupby("why")["count"].sum().items())]
        if "losses" in figures
        else []
    )
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
    """Draw published, delivered, acked and failed messages a minute, a second of a short period, or an hour of a long one."""
    timeline = Timeline.of(figures)
    if timeline is None:
        return
    counted = ("published", "delivered", "acked", "failed", "retried", "dead")
    sums = timeline.sums(timeline.rows(figures, "throughput"), counted)
    # With an area: the line is hidden where all that is published is delivered.
    axes.fill_between(sums.index, sums["published"], step="post", color="C0", alpha=0.3, linewidth=0)
    for number, name in enumerate(counted):
        if sums[name].any() or name in {"published", "acked"}:
            axes.step(sums.index, sums[name], where="post", label=name, color=f"C{number}", linewidth=1.0)
    _over_time(axes, timeline, f"messages a{'n' if timeline.unit == 'hour' else ''} {timeline.unit}")


def draw_backlog(axes: Axes, figures: Mapping[str, pd.DataFrame]) -> None:
    """Draw the ready messages of the queues that have most of them, and all others together."""
    timeline = Timeline.of(figures)
    if timeline is None:
        return
    lines = {str(queue): timeline.levels(rows, "backlog") for queue, rows in timeline.rows(figures, "backlog").groupby("queue")}
    most = sorted(lines, key=lambda queue: -lines[queue].max())
    for queue in most[:MAX_LINES]:
        axes.step(lines[queue].index, lines[queue], where="post", label=_label(queue), linewidth=1.4)
    if others := most[MAX_LINES:]:
        total = sum(lines[queue] for queue in others[1:]) + lines[others[0]]
        axes.step(total.index, total, where="post", label=f"{len(others)} others", linewidth=1.4, linestyle=":")
    _over_time(axes, timeline, "ready messages")


def draw_waits(axes: Axes, figures: Mapping[str, pd.DataFrame]) -> None:
    """Draw the 95th percentile of the wait for a delivery, of the busiest queues; a gap where none was delivered."""
    timeline = Timeline.of(figures)
    if timeline is None:
        return
    for queue, rows in _busiest(figures, timeline.rows(figures, "waits")):
        worst = timeline.worst(rows, "wait_p95_s")
        axes.step(worst.index, worst, where="post", label=_label(queue), linewidth=1.4)
    _over_time(axes, timeline, "seconds, 95th percentile" + (", worst minute" if timeline.unit in {"hour", "day"} else ""))


def draw_tasks(axes: Axes, figures: Mapping[str, pd.DataFrame]) -> None:
    """Draw wait and run of each task, median and 95th percentile."""
    frame = figures["by_task"].head(12).iloc[::-1]
    places = range(len(frame))
    for offset, name in ((0.2, "wait"), (-0.2, "run")):
        bars = [place + offset for place in places]
        axes.barh(bars, frame[f"{name}_p95_s"].fillna(0), height=0.36, label=f"{name}, 95th percentile", alpha=0.55)
        axes.plot(frame[f"{name}_p50_s"].fillna(0), bars, "|", color="black", markersize=9, markeredgewidth=2)
    axes.set_yticks(list(places), [_label(str(task)) for task in frame["task"]])
    axes.set_xlabel("seconds (| is the median)")


def _over_time(axes: Axes, timeline: Timeline, label: str) -> None:
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.set_xlim(timeline.start.to_pydatetime(), timeline.end.to_pydatetime())
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlabel("time (UTC)")


CHARTS = {
    "Throughput": draw_throughput,
    "Backlog": draw_backlog,
    "Wait for a delivery": draw_waits,
    "Wait and run by task": draw_tasks,
}


def draw(figures: Mapping[str, pd.DataFrame], path: Path) -> None:
    """Draw all charts into one picture; its kind follows the file's ending, such as `.svg` or `.png`.

    Raises:
        InvalidArgument: there is no such kind.
    """
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        allowed = ", ".join(f".{kind}" for kind in sorted(kinds))
        raise InvalidArgument(f"picture {str(path)!r} is not allowed; allowed endings: {allowed}")
    figure, every = plt.subplots(2, 2, figsize=(14, 8), layout="constrained")
    for axes, (name, painter) in zip(every.flat, CHARTS.items(), strict=True):
        _paint(axes, painter, figures)
        # Above three rows of a legend.
        axes.set_title(name, loc="left", pad=42)
    figure.savefig(path)
    plt.close(figure)


def _headline(figures: Mapping[str, pd.DataFrame]) -> str:
    """Return the figures that one wants to see first, beside those of the other period."""
    this, *others = figures["headline"].to_dict("records")
    lost = {"lost_events": figures["losses"]["count"].sum()} if "losses" in figures else {}
    items = []
    for name, value in {**this, **lost}.items():
        if name == "period":
            continue
        before = f"<small>{_short(name, others[0][name])} before</small>" if others and name in others[0] else ""
        items.append(f"<div><dt>{html.escape(_words(name))}</dt><dd>{_short(name, value)}{before}</dd></div>")
    return f'<dl class="headline">{"".join(items)}</dl>'


def _short(name: str, value: Any) -> str:
    if value != value or value is None:  # noqa: PLR0124 - NaN differs from itself
        return "-"
    return f"{value:,.3g} s" if name.endswith("_s") else f"{int(value):,}"


def _words(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")


def _svg(name: str, painter: Any, figures: Mapping[str, pd.DataFrame]) -> str:
    figure, axes = plt.subplots(figsize=(11, 3.4), layout="constrained")
    _paint(axes, painter, figures)
    text = io.StringIO()
    label = html.escape(f"Chart: {name}, {axes.get_ylabel() or axes.get_xlabel()}")
    # Transparent: the page has a dark colour, too.
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    # Without the XML head, the picture is an element of the page.
    return text.getvalue()[text.getvalue().index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _paint(axes: Axes, painter: Any, figures: Mapping[str, pd.DataFrame]) -> None:
    painter(axes, figures)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        # Above the lines, which fill the chart of a busy hour; it begins where a phone begins to show the chart.
        axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=LEGEND_COLUMNS)
    else:
        axes.text(0.5, 0.5, "nothing in this period", transform=axes.transAxes, ha="center", color="#68707c")
    for label in axes.get_xticklabels():
        label.set_fontsize(8)


def _label(name: str) -> str:
    """Return a name that leaves room for the chart: of a long one the two ends."""
    # matplotlib leaves out of a legend what begins with an underscore, and fonts have no control characters.
    shown = (" " if name.startswith("_") else "") + "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in name
    )
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL // 2 - 1]}…{shown[-LONGEST_LABEL // 2 :]}"


def _busiest(figures: Mapping[str, pd.DataFrame], frame: pd.DataFrame) -> list[tuple[str, Any]]:
    present = set(frame["queue"])
    order = [queue for queue in figures["by_queue"]["queue"] if queue in present][:MAX_LINES]
    return [(queue, frame[frame["queue"] == queue]) for queue in order]


def _links(name: str, figures: Mapping[str, pd.DataFrame]) -> tuple[dict[str, str], dict[str, str]]:
    """Return of a table's column `task` the values that are links, and those that are the aims of links."""
    tasks = [str(task) for task in figures["failures"]["task"].dropna().unique()] if "failures" in figures else []
    aims = {task: f"failures-{number}" for number, task in enumerate(tasks)}
    return {"by_task": (aims, {}), "slowest": (aims, {}), "failures": ({}, aims)}.get(name, ({}, {}))


def _table(frame: pd.DataFrame, links: Mapping[str, str], aims: Mapping[str, str]) -> str:
    if frame.empty:
        return '<p class="none">None.</p>'
    head = "".join(f"<th>{html.escape(str(name).replace('_', ' '))}</th>" for name in frame.columns)
    rows, aimed = [], set()
    for row in frame.to_dict("records"):
        task, identity = row.get("task"), ""
        if task in aims and task not in aimed:
            identity = f' id="{aims[task]}"'
            aimed.add(task)
        cells = "".join(
            f'<td><a href="#{links[task]}">{html.escape(str(task))}</a></td>'
            if name == "task" and task in links
            else _cell(value)
            for name, value in row.items()
        )
        rows.append(f"<tr{identity}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


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
