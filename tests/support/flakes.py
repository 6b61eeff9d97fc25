"""Counts the flaky tests of a CI run: those that failed, and passed when they ran once more.

    python -m tests.support.flakes FOLDER

`.ci/run` leaves in the folder `NAME.xml` with what became of the tests of each of its steps, and `NAME-retry.xml` where some of
them ran again. `flaky.txt` there keeps the flaky ones of all runs, a line each: the day and the test.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from datetime import date, timedelta
from pathlib import Path

#: Flaky tests of one run that are borne, and runs of a week in which the same one may be flaky.
MOST, MOST_A_WEEK = 2, 1
WEEK = timedelta(days=7)
RETRY = "-retry"
LIST = "flaky.txt"


def main(folder: Path, today: date) -> int:
    """Print how many tests were flaky and which, add them to the list; return 1 where they are too many, else 0."""
    flaky = sorted({test for report in folder.glob(f"*{RETRY}.xml") for test in flaky_of(report)})
    kept = folder / LIST
    lines = kept.read_text().splitlines() if kept.exists() else []
    lines += [f"{today} {test}" for test in flaky]
    kept.write_text("".join(f"{line}\n" for line in lines))
    since = f"{today - WEEK}"
    week = [test for day, _, test in (line.partition(" ") for line in lines) if day > since]
    often = [test for test in flaky if week.count(test) > MOST_A_WEEK]
    print(f"FLAKY: {len(flaky)} (all runs: {kept})")  # noqa: T201
    for test in flaky:
        print(f"  {test}{f': {week.count(test)} times in a week' if test in often else ''}")  # noqa: T201
    return int(len(flaky) > MOST or bool(often))


def flaky_of(retry: Path) -> set[str]:
    """Return the tests that failed, and did not when they ran once more, by the report of the second time."""
    return failed(retry.with_name(retry.name.replace(RETRY, ""))) - failed(retry)


def failed(report: Path) -> set[str]:
    """Return the tests that failed by a report in JUnit's format, each as `module::test`."""
    cases = ET.parse(report).iter("testcase")
    return {
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), date.today()))  # noqa: DTZ011 - days are enough
