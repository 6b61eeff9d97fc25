"""What the charts draw over time: an even line of steps, in which a minute without events is a minute with zeros.

The tables per minute have rows only where something happened. A line from one such row to the next would draw messages through
hours in which there were none, and end a backlog with its last event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Sequence

Line = TypeVar("Line", pd.DataFrame, "pd.Series[float]")

#: Longer periods are drawn by the hour, and by the day: two thousand steps are a band of colour.
LONGEST_BY_MINUTE, LONGEST_BY_HOUR = pd.Timedelta(days=1), pd.Timedelta(days=31)


@dataclass(frozen=True)
class Timeline:
    """The steps of a chart.

    Attributes:
        start, end: of the period, UTC.
        step: how long a step is.
    """

    start: pd.Timestamp
    end: pd.Timestamp
    step: pd.Timedelta

    @classmethod
    def of(cls, figures: Mapping[str, pd.DataFrame]) -> Timeline | None:
        """Return the timeline of a report's figures; None where nothing ever happened."""
        start, end = figures["period"].loc[0, ["start", "end"]]
        if pd.isna(start) or pd.isna(end) or start >= end:
            return None
        if "throughput_by_second" in figures:
            step = pd.Timedelta(seconds=1)
        else:
            by_minute, by_hour = end - start <= LONGEST_BY_MINUTE, end - start <= LONGEST_BY_HOUR
            step = pd.Timedelta(minutes=1) if by_minute else pd.Timedelta(hours=1) if by_hour else pd.Timedelta(days=1)
        return cls(start.floor(step), end.ceil(step), step)

    @property
    def unit(self) -> str:
        """The step's name."""
        return {1: "second", 60: "minute", 3600: "hour", 86_400: "day"}[int(self.step.total_seconds())]

    def rows(self, figures: Mapping[str, pd.DataFrame], name: str) -> pd.DataFrame:
        """Return the figures by the minute, or by the second of a short period."""
        return figures[f"{name}_by_second" if self.unit == "second" else name]

    @property
    def steps(self) -> pd.DatetimeIndex:
        """The beginning of each step."""
        return pd.date_range(self.start, self.end, freq=self.step, inclusive="left")

    def sums(self, rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
        """Return the sums of columns of counts in each step; 0 where nothing happened."""
        found = rows.groupby(rows["minute"].dt.floor(self.step))[list(columns)].sum()
        return self._closed(found.reindex(self.steps, fill_value=0))

    def levels(self, rows: pd.DataFrame, column: str) -> pd.Series[float]:
        """Return a column that stays as it is until the next row, such as a backlog: its value at the end of each step.

        A row before the timeline is what it begins with; without one it begins with 0.
        """
        ordered = rows.sort_values("minute")
        found = ordered.groupby(ordered["minute"].dt.floor(self.step))[column].last()
        return self._closed(found.reindex(found.index.union(self.steps)).ffill().reindex(self.steps).fillna(0))

    def worst(self, rows: pd.DataFrame, column: str) -> pd.Series[float]:
        """Return the largest value of a column in each step; a gap where there is none."""
        return self._closed(rows.groupby(rows["minute"].dt.floor(self.step))[column].max().reindex(self.steps))

    def _closed(self, line: Line) -> Line:
        """Return a line with its last value at the end of the timeline, too: a step has a width."""
        last = line.iloc[[-1]]
        last.index = [self.end]
        return pd.concat([line, last])
