"""Fixtures that hand out servers, and the guard that real-server tests really ran."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis.utils
from hypothesis import HealthCheck, settings
from redis.utils import HIREDIS_AVAILABLE

from tests.support import topologies
from tests.support.apps import PLAIN_VARIABLE
from tests.support.fork_server import end_fork_server
from tests.support.guard import ServerTestGuard
from tests.support.servers import DATABASES, Server, new_server
from tests.support.services import end_services
from tests.support.workers import Worker

if TYPE_CHECKING:
    from celery_redis_plus.testing.server import EmbeddedServer

# A shell's background job ignores Ctrl-C, and what it starts ignores it as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# redis-py parses the metadata of its distribution for each client that is made: 3 ms, a fifth of a small test's time.
redis.utils.metadata = SimpleNamespace(version=cache(redis.utils.metadata.version))  # type: ignore[attr-defined]

# How long Hypothesis takes to make an example, or a test to run one, says only how busy the machine is.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(autouse=True)
def _no_services_left() -> Iterator[None]:
    """End the services that a test leaves: their threads would sweep the queues of the tests that follow in this process."""
    yield
    end_services()


@pytest.fixture(scope="session", autouse=True)
def _no_fork_server_left() -> Iterator[None]:
    yield
    end_fork_server()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server that all tests of this process share; with `--topologies`, one after the other."""
    with topologies.TOPOLOGIES[getattr(request, "param", "standalone")]() as shared:
        # For the tasks' journals, in worker processes that know the broker only.
        os.environ[PLAIN_VARIABLE] = shared.url(1, "redis").rpartition("/")[0]
        yield shared
        del os.environ[PLAIN_VARIABLE]


@pytest.fixture
def broker_url(server: Server) -> str:
    """`redisplus://…`: the address of an empty database on the shared server."""
    for db in DATABASES:
        with server.client(db) as client:
            client.flushdb()
    return server.url()


@pytest.fixture
def redis_client(server: Server, broker_url: str) -> Iterator[redis.Redis]:
    """A redis-py client for the database that `broker_url` names."""
    with server.client() as client:
        yield client


@pytest.fixture
def start_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Start further servers: `start_server({"maxmemory": "5mb"})`."""
    with ExitStack() as stack:

        def start(config: dict[str, str] | None = None) -> EmbeddedServer:
            return stack.enter_context(new_server(config))

        yield start


@pytest.fixture
def own_server(start_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server of this test's own, to be killed, frozen and restarted."""
    return start_server()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start workers: `start_worker(broker=broker_url, pool="solo")`; all are stopped warmly at the end, side by side."""
    started: list[Worker] = []
    with ExitStack() as stack:

        def start(app: str = "tests.support.apps", **options: Any) -> Worker:
            started.append(stack.enter_context(Worker(app, tmp_path, **options)))
            return started[-1]

        yield start
        for worker in started:
            worker.ask_to_stop()


# ---- the processes of pytest-xdist

PROCESSES_A_CORE = 4


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and never look through what is there then: 2 s of each process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Four processes for each core with `-n auto`: tests wait for more than half of their time. None for one file."""
    if len(config.args) == 1 and Path(config.args[0].partition("::")[0]).is_file():
        config.option.dist = "no"
        return 0
    return PROCESSES_A_CORE * (os.cpu_count() or 1)


@pytest.hookimpl(specname="pytest_collection", tryfirst=True)
def import_test_files(session: pytest.Session) -> None:
    """Import the test files in one of several processes, each process from another file on.

    In a fresh clone nothing is compiled. Six processes that begin with the same file compile most files six times: 25 s of CPU.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    root, ignored = session.config.rootpath, {Path(path).resolve() for path in session.config.option.ignore or ()}
    folders = [Path(argument.partition("::")[0]).resolve() for argument in session.config.args]
    files = sorted({file for folder in folders for file in folder.rglob("test_*.py") if not ignored.intersection(file.parents)})
    first = int(worker["workerid"].removeprefix("gw")) * len(files) // worker["workercount"]
    for file in (*files[first:], *files[:first]):
        # What cannot be imported, or is skipped as a whole, is told when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(root).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long: otherwise one process has such a file when the others have nothing left."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


# ---- the weekly form


@pytest.fixture
def weekly(request: pytest.FixtureRequest) -> bool:
    """Tell whether a test that has many cases of one kind runs them all, and not a part of them."""
    return bool(request.config.getoption("--weekly"))


class LeavesOutWeeklyTests:
    """A pytest plugin that leaves out what is marked `weekly`, and of a test marked `sample(n)` all but n cases.

    The first case of a test is always one of them, and the others lie evenly behind it. A test that is named
    (`file.py::test`) has all its cases.
    """

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if not item.get_closest_marker("weekly")]
        if not any("::" in argument for argument in config.args):
            kept = _sampled(kept)
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept


def _sampled(items: list[pytest.Item]) -> list[pytest.Item]:
    families: dict[tuple[str, object], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            # Each topology has its own.
            topology = getattr(item, "callspec", SimpleNamespace(params={})).params.get("server")
            families.setdefault((item.nodeid.partition("[")[0], topology), []).append(item)
    left_out: set[pytest.Item] = set()
    for family in families.values():
        (most,) = family[0].get_closest_marker("sample").args  # type: ignore[union-attr]
        left_out |= set(family) - {family[number * len(family) // most] for number in range(min(most, len(family)))}
    return [item for item in items if item not in left_out]


# ---- other topologies


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have each test that shares the server run on each topology."""
    text = metafunc.config.getoption("--topologies")
    if text and "server" in metafunc.fixturenames:
        marks = metafunc.definition.iter_markers(topologies.MARK)
        values = topologies.parameters(topologies.parse(text), marks)
        metafunc.parametrize("server", values, indirect=True, scope="session")


# ---- the guard


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--topologies",
        metavar="NAMES",
        help=f"run the tests that share a server on each of these, with commas between them: {', '.join(topologies.TOPOLOGIES)}; "
        "all: those behind the first",
    )
    parser.addoption(
        "--weekly",
        action="store_true",
        help="run each combination of cases, not a part of them (`tox -e weekly`)",
    )
    parser.addoption(
        "--min-server-tests",
        type=int,
        default=0,
        metavar="N",
        help="fail unless at least N tests passed on a real server",
    )


def pytest_report_header() -> str:
    return f"replies are parsed by {'hiredis' if HIREDIS_AVAILABLE else 'redis-py, in Python'}"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ServerTestGuard(config.getoption("--min-server-tests")), "server-test-guard")
    if not config.getoption("--weekly"):
        config.pluginmanager.register(LeavesOutWeeklyTests(), "leaves-out-weekly-tests")
