"""What the chaos tests share. In CI they run with short counts; `--chaos-full` runs them with the full ones.

The figures that a test measures are printed at the end of the run (fixture `figures`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.app import CONFIG_VARIABLE, make_app
from tests.chaos.ledger import VARIABLE, Ledger
from tests.chaos.tally import Tally
from tests.support.judge import recorder
from tests.support.judge.judging import assert_kept
from tests.support.judge.records import History
from tests.support.judge.rules import Rules
from tests.support.workers import Worker

TALLY = pytest.StashKey[Tally]()
LINES = pytest.StashKey[list[str]]()
FULL_TIMEOUT_S = 3600
STORM = "test_storm.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-full", action="store_true", help="run the chaos tests with their full counts")
    parser.addoption("--seed", type=int, metavar="N", help="repeat the storm's faults and choices of the run with this seed")
    parser.addoption("--faults", type=int, default=0, metavar="N", help="run only the storm, with so many faults in each pool")
    parser.addoption(
        "--tasks", type=int, metavar="N", help="publish so many plain tasks in a storm by counts; 0: until its last fault"
    )
    parser.addoption("--rounds", type=int, default=25, metavar="N", help="kill so many workers in each test of deaths")
    parser.addoption("--scale", type=float, default=1.0, metavar="X", help="part of the full counts of false alarms")
    parser.addoption("--seconds", type=float, default=0, metavar="N", help="run only the storm, for about so long")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LINES] = []
    config.stash[TALLY] = Tally()
    config.addinivalue_line("markers", "long_storm: runs only with --chaos-full or --faults")
    config.addinivalue_line("markers", "full_only: runs only with --chaos-full")
    config.addinivalue_line("markers", "judged(acks, strict): how strictly the run is judged, see tests/support/judge/rules.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            if config.getoption("--chaos-full") or config.getoption("--seconds") or config.getoption("--faults"):
                item.add_marker(pytest.mark.timeout(FULL_TIMEOUT_S))
    if config.getoption("--seconds") or config.getoption("--faults"):
        others = [item for item in items if item.path.name != STORM]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    if not config.getoption("--chaos-full"):
        unwanted = ["full_only", *([] if config.getoption("--faults") else ["long_storm"])]
        long = [item for item in items if any(map(item.get_closest_marker, unwanted))]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[LINES]:
        terminalreporter.section("chaos figures")
        for line in config.stash[LINES]:
            terminalreporter.write_line(line)
    for line in config.stash[TALLY].table():
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Judge each run that has not failed, by what all its processes recorded."""
    yield
    folder = os.environ.get(recorder.VARIABLE)
    if folder and "_recorded" in item.fixturenames:
        ledger = item.funcargs.get("ledger")
        marker = item.get_closest_marker("judged")
        rules = Rules(**marker.kwargs) if marker else Rules()
        history = History.read(Path(folder), ledger.records() if ledger else ())
        item.config.stash[LINES].append(f"{item.name}: judged {len(history.records)} records")
        assert_kept(history, rules)


@pytest.fixture(autouse=True)
def _recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Record what this process and all that it starts publish and consume."""
    folder = tmp_path / "record"
    folder.mkdir()
    monkeypatch.setenv(recorder.VARIABLE, str(folder))
    with recorder.recording():
        yield


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the full counts are wanted."""
    return bool(request.config.getoption("--chaos-full"))


@dataclass(frozen=True)
class StormLength:
    """How long a storm lasts: so many faults in each pool, so many seconds in all, or, with neither, by counts."""

    faults: int
    seconds: float
    full: bool
    #: Plain tasks; None: as many as the form says.
    tasks: int | None = None


@pytest.fixture
def storm_length(request: pytest.FixtureRequest) -> StormLength:
    """How long the storm shall last."""
    option = request.config.getoption
    return StormLength(option("--faults"), option("--seconds"), option("--chaos-full"), option("--tasks"))


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """What the kinds of faults have done, over all storms of the run."""
    return request.config.stash[TALLY]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What decides on a test's faults: `--seed`, or another one in each run."""
    given = request.config.getoption("--seed")
    return random.randrange(10**6) if given is None else given


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a line of figures at the end of the run."""

    def figure(line: str) -> None:
        request.config.stash[LINES].append(f"{request.node.name}: {line}")

    return figure


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The ledger of everything that tasks of this test do."""
    directory = tmp_path / "ledger"
    monkeypatch.setenv(VARIABLE, str(directory))
    return Ledger(directory)


@pytest.fixture
def chaos_app(ledger: Ledger) -> Iterator[Callable[..., Any]]:
    """Make apps for this process: `chaos_app(url, visibility_timeout=3)`."""
    with ExitStack() as stack:

        def make(url: str, *, visibility_timeout: float, **config: Any) -> Any:
            options = {
                "visibility_timeout": visibility_timeout,
                "client_name": "chaos-test",
                **config.pop("broker_transport_options", {}),
            }
            app = make_app(url, broker_transport_options=options, **config)
            stack.callback(app.close)
            return app

        yield make


@pytest.fixture
def chaos_worker(tmp_path: Path, ledger: Ledger) -> Iterator[Callable[..., Worker]]:
    """Prepare workers of the chaos app, to be started by the test: `chaos_worker(url, visibility_timeout=3)`.

    All that still live when the test ends are killed; the tests judge by the ledger.
    """
    with ExitStack() as stack:

        def make(url: str, *, visibility_timeout: float, config: dict[str, Any] | None = None, **options: Any) -> Worker:
            settings = {
                "broker_transport_options": {"visibility_timeout": visibility_timeout},
                **(config or {}),
            }
            options.setdefault("forked", False)
            env = {CONFIG_VARIABLE: repr(settings), **options.pop("env", {})}
            worker = Worker("tests.chaos.app", tmp_path, broker=url, env=env, **options)
            stack.callback(worker.kill)
            return worker

        yield make
