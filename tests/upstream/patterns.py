"""How `skips.py` and `suites.py` name tests: file, class, test, without parameters; `*` is anything."""

from __future__ import annotations

from fnmatch import fnmatchcase

_FOLDER = "t/integration/"


def short_id(nodeid: str) -> str:
    """Return `test_redis.py::test_ack` for `t/integration/test_redis.py::test_ack[None]`."""
    return nodeid.removeprefix(_FOLDER).partition("[")[0]


def matches(nodeid: str, pattern: str) -> bool:
    """Tell whether the test is one that `pattern` names."""
    return fnmatchcase(short_id(nodeid), pattern)
