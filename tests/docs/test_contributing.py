"""What CONTRIBUTING says of the tests is what `tox.ini`, `.ci/run` and pytest's configuration do."""

import re
from pathlib import Path

from tests.conftest import PROCESSES_A_CORE
from tests.docs.test_commands import tox_environments

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4}


def table():
    """The environments in CONTRIBUTING, and whether CI has them: "yes", "part" or "no"."""
    rows = re.findall(r"^\| (`[^|]+) \| (yes|part|no) \|", CONTRIBUTING, re.MULTILINE)
    return {name: in_ci for names, in_ci in rows for name in re.findall("`([a-z0-9-]+)`", names)}


def test_each_environment_is_described():
    # The table names the first Python and the last.
    assert tox_environments() - {"py312", "py313"} == set(table())


def test_the_table_says_which_environments_ci_has():
    code = "\n".join(line for line in (ROOT / ".ci/run").read_text().splitlines() if not line.lstrip().startswith("#"))
    words = set(re.findall(r"[a-z0-9-]+", code))
    known = {name: in_ci != "no" for name, in_ci in table().items() if not name.startswith("py")}
    assert known == {name: name in words for name in known}


def test_the_pages_know_how_many_processes_run_the_tests():
    for text in (CONTRIBUTING, (ROOT / "docs/design/own-tests.md").read_text()):
        (word,) = re.findall(r"(\w+) processes for each core", text)
        assert NUMBERS[word.lower()] == PROCESSES_A_CORE
