"""From samples to medians, ratios, a table and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import KOMBU_REDIS, ORDER, OURS
from benchmarks.stats import median, ratio, spread
from benchmarks.targets import FIGURES, Figure, Of, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.runner import Sample


MISSED = "MISSED"
MET = ("met", "met, aim too")
RESULTS_BEGIN = "<!-- results: written by python -m benchmarks --markdown -->"
RESULTS_END = "<!-- end of results -->"
#: How lines begin that have no target, and that docs/flow-control.md repeats.
REPEATED = "throttle, "


@dataclass(frozen=True)
class Line:
    """One figure over all contenders."""

    figure: Figure
    medians: dict[str, float]
    spreads: dict[str, float | None]
    ratio: float | None

    @property
    def compared(self) -> float | None:
        """The number that the target is about."""
        target = self.figure.target
        if target is None:
            return None
        return self.ratio if target.of is Of.RATIO else self.medians.get(OURS)

    @property
    def verdict(self) -> str:
        """One of "met", "met, aim too" and "MISSED"; nothing where there is no target."""
        target, value = self.figure.target, self.compared
        if target is None or value is None:
            return ""
        if not target.met(value):
            return MISSED
        return MET[1] if target.aimed(value) else MET[0]


def summarise(samples: Sequence[Sample]) -> list[Line]:
    """The lines for which anything was measured, in the order of the targets' table."""
    values: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for key, value in sample.figures.items():
            values.setdefault(key, {}).setdefault(sample.contender, []).append(value)
    return [_line(figure, values[figure.key]) for figure in FIGURES if figure.key in values]


def _line(figure: Figure, values: dict[str, list[float]]) -> Line:
    medians = {name: median(numbers) for name, numbers in values.items()}
    spreads = {name: spread(numbers) for name, numbers in values.items()}
    return Line(figure, medians, spreads, ratio(medians.get(OURS), medians.get(KOMBU_REDIS)))


def number(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return ""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def threshold(target: Target | None) -> tuple[str, str]:
    """How must and aim are shown."""
    if target is None:
        return "", ""
    sign = ">=" if target.high_is_good else "<="
    suffix = "x" if target.of is Of.RATIO else ""
    aim = "" if target.aim is None else f"{number(target.aim)}{suffix}"
    return f"{sign} {number(target.must)}{suffix}", aim


def table(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Head and rows, as text."""
    names = [name for name in ORDER if any(name in line.medians for line in lines)]
    head = ["figure", "unit", *names, "ratio", "must", "aim", ""]
    rows = []
    for line in lines:
        must, aim = threshold(line.figure.target)
        shown_ratio = "" if line.ratio is None else f"{number(line.ratio)}x"
        cells = [number(line.medians.get(name)) for name in names]
        rows.append([line.figure.label, line.figure.unit, *cells, shown_ratio, must, aim, line.verdict])
    return head, rows


def as_text(lines: Sequence[Line]) -> str:
    """The table in plain characters."""
    head, rows = table(lines)
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    left = {0, 1, len(head) - 1}

    def one(row: list[str]) -> str:
        cells = (
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join([one(head), "  ".join("-" * width for width in widths), *map(one, rows)])


def as_markdown(lines: Sequence[Line]) -> str:
    """The table as the docs show it: kombu's and ours, of lines that have a target or stand on other pages, and what missed it.

    Lines that have to be 0, and are, say nothing. `as_json` has all.
    """
    head = ["figure", "unit", KOMBU_REDIS, OURS, "ratio"]
    rule = ["---", "---", "---:", "---:", "---:"]
    rows = []
    for line in lines:
        target = line.figure.target
        if target is None and not line.figure.label.startswith(REPEATED):
            continue
        if target is not None and target.must == 0 and line.compared == 0:
            continue
        shown_ratio = "" if line.ratio is None else f"{number(line.ratio)}x"
        cells = [number(line.medians.get(name)) for name in (KOMBU_REDIS, OURS)]
        rows.append([line.figure.label, line.figure.unit, *cells, shown_ratio])
    table_text = "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *rows])
    missed = [f"{line.figure.label} (must {threshold(line.figure.target)[0]})" for line in lines if line.verdict == MISSED]
    return f"{table_text}\n\nTargets missed: {'; '.join(missed) or 'none'}."


def into_document(document: str, results: str) -> str:
    """``document`` with what stands between its result marks replaced; without marks, the results alone."""
    before, begin, rest = document.partition(RESULTS_BEGIN)
    _, end, after = rest.partition(RESULTS_END)
    if not (begin and end):
        return results + "\n"
    return f"{before}{begin}\n{results}\n{end}{after}"


def as_json(lines: Sequence[Line], samples: Sequence[Sample], machine: dict[str, str], run: dict[str, Any]) -> dict[str, Any]:
    """Everything: the summary, every sample behind it, and where it was measured."""
    summary = []
    for line in lines:
        target = line.figure.target
        entry: dict[str, Any] = {
            "key": line.figure.key,
            "label": line.figure.label,
            "unit": line.figure.unit,
            "medians": line.medians,
            "spreads": line.spreads,
            "ratio": line.ratio,
        }
        if target:
            entry |= {"of": target.of.value, "must": target.must, "aim": target.aim}
            entry["verdict"] = line.verdict
        summary.append(entry)
    return {"machine": machine, "run": run, "summary": summary, "samples": [asdict(s) for s in samples]}
