"""What became of each test, read from the lines that the plugin's recorder wrote, and the summary of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.upstream.patterns import short_id
from tests.upstream.skips import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(slots=True)
class Test:
    """One test: how it ended, after how many failed attempts, how long it took."""

    id: str
    outcome: str = "unfinished"
    detail: str = ""
    reruns: int = 0
    duration_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Tell whether it counts as a failure: also when it never ended."""
        return self.outcome in {"failed", "unfinished"}

    @property
    def why(self) -> str:
        """Return the line of the report that names the error."""
        errors = [line for line in self.detail.splitlines() if line.startswith("E  ")]
        lines = errors or self.detail.splitlines() or ["no report: the process ended or hung here"]
        return lines[0].removeprefix("E").strip()


@dataclass(slots=True)
class Results:
    """All tests of one run."""

    name: str
    tests: dict[str, Test] = field(default_factory=dict)
    duration_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    files_left_out: list[str] = field(default_factory=list)

    @property
    def suite(self) -> str:
        """Name of the suite that it belongs to."""
        return self.name.partition(" ")[0]

    @property
    def failures(self) -> list[Test]:
        """Tests that failed or never ended."""
        return [test for test in self.tests.values() if test.failed]

    @property
    def ok(self) -> bool:
        """Tell whether nothing unexpected happened."""
        return not self.failures and not self.problems

    def read(self, path: Path) -> None:
        """Take in the recorder's lines."""
        lines = path.read_text().splitlines() if path.exists() else []
        for line in map(json.loads, lines):
            for nodeid in line.get("collected", ()):
                self.tests.setdefault(nodeid, Test(nodeid))
            if "id" in line:
                self._take(line)

    def _take(self, line: dict[str, object]) -> None:
        nodeid = str(line["id"])
        test = self.tests.setdefault(nodeid, Test(nodeid))
        outcome, detail = str(line["outcome"]), str(line.get("detail", ""))
        test.duration_s += float(str(line.get("duration_s", 0)))
        if outcome == "rerun":
            test.reruns += 1
            test.outcome, test.detail = "unfinished", detail
        elif outcome != "passed" and test.outcome != "failed":
            test.outcome, test.detail = outcome, detail
        elif outcome == "passed" and line["when"] == "call" and test.outcome == "unfinished":
            test.outcome = "passed"


def summary(results: Results) -> str:
    """Return the account of one run, to be read by people."""
    tests = list(results.tests.values())
    counts = Counter("failed" if test.failed else test.outcome for test in tests)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    lines = [f"== {results.name}: {counted or 'no test ran'} in {results.duration_s:.0f} s"]
    lines += [f"  FAILED {test.id}: {test.why}" for test in results.failures]
    lines += [f"  PROBLEM {problem}" for problem in results.problems]
    retried = [test for test in tests if test.reruns and not test.failed]
    lines += [f"  passed after {test.reruns} failed attempts: {test.id}: {test.why}" for test in retried]
    for reason, ids in sorted(_skipped(tests).items()):
        lines.append(f"  {len(ids)} skipped: {reason}")
        if reason.startswith(OURS):
            lines += [f"      {name}" for name in sorted(set(map(short_id, ids)))]
    lines += [f"  {OURS}{file}" for file in results.files_left_out]
    return "\n".join(lines)


def _skipped(tests: Iterable[Test]) -> dict[str, list[str]]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        if test.outcome == "skipped":
            by_reason[test.detail].append(test.id)
    return by_reason
