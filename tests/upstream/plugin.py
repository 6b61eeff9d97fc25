"""Inside a suite's pytest process: swaps the transport, leaves out what `skips.py` names, records results."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.upstream.patterns import matches
from tests.upstream.skips import OURS, Skip, skips_for
from tests.upstream.suites import RUNS, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMES = {"redis": "redisplus", "rediss": "redispluss"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("upstream")
    group.addoption("--upstream-run", choices=[run.name for run in RUNS], required=True)
    group.addoption("--upstream-transport", choices=["redis", "redisplus"], required=True)
    group.addoption("--upstream-results", type=Path, required=True)
    group.addoption("--upstream-broker", required=True)
    group.addoption("--upstream-topology", default="standalone")
    group.addoption("--upstream-quick", action="store_true")
    group.addoption("--upstream-plain", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "env(name): the broker that a kombu test needs")
    run = next(run for run in RUNS if run.name == config.option.upstream_run)
    transport = config.option.upstream_transport
    if transport == "redisplus":
        if run.takes_over_redis_urls:
            _take_over_redis_urls({"priority_order": "low-first"} if run.low_first else {}, config.option.upstream_broker)
        if run.suite == "celery" and not config.option.upstream_plain:
            _configure_test_apps()
    skips = skips_for(run.suite, transport, config.option.upstream_topology)
    config.pluginmanager.register(Selection(run, transport, skips, quick=config.option.upstream_quick))
    config.pluginmanager.register(Recorder(config.option.upstream_results))


def _take_over_redis_urls(transport_options: Mapping[str, Any], broker_url: str) -> None:
    """Make every `kombu.Connection("redis://...")` of this process one of ours: to the broker, if it is to the suite's server."""
    own = f"{os.environ['REDIS_HOST']}:{os.environ['REDIS_6379_TCP']}"
    from kombu.connection import Connection

    original = Connection.__init__

    @functools.wraps(original)
    def init(self: Connection, hostname: Any = "localhost", *args: Any, **kwargs: Any) -> None:
        scheme, separator, rest = str(hostname).partition("://")
        if separator and scheme in _SCHEMES and "transport" not in kwargs:
            hostname = broker_url if "+" in broker_url and rest.startswith(own) else f"{_SCHEMES[scheme]}://{rest}"
            kwargs["transport_options"] = {**transport_options, **(kwargs.get("transport_options") or {})}
        original(self, hostname, *args, **kwargs)

    Connection.__init__ = init


def _configure_test_apps() -> None:
    """Let the apps that Celery's fixtures make go through `configure_app`, as a user's app does."""
    from celery.contrib.testing import app as testing

    from celery_redis_plus import configure_app

    original = testing.TestApp

    @functools.wraps(original)
    def test_app(*args: Any, **kwargs: Any) -> Any:
        return configure_app(original(*args, **kwargs))

    testing.TestApp = test_app


class Selection:
    """Which tests run."""

    def __init__(self, run: Run, transport: str, skips: tuple[Skip, ...], *, quick: bool) -> None:
        self._run = run
        self._skips = skips
        self._transport = transport
        self._quick = quick

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._quick and self._run.quick:
            kept = [item for item in items if self._is_quick(item.nodeid)]
            config.hook.pytest_deselected(items=[item for item in items if item not in kept])
            items[:] = kept
        for item in items:
            if any(matches(item.nodeid, pattern) for pattern in self._run.races):
                item.add_marker(pytest.mark.flaky(reruns=2))
            for skip in self._skips:
                if matches(item.nodeid, skip.pattern):
                    item.add_marker(pytest.mark.skip(reason=f"{OURS}{skip.reason}"))
                    break
        if self._transport == "redisplus":
            from tests.upstream import adapters

            adapters.install({item.module for item in items if isinstance(item, pytest.Function)})

    def _is_quick(self, nodeid: str) -> bool:
        wanted = any(matches(nodeid, pattern) for pattern in self._run.quick)
        return wanted and not any(matches(nodeid, pattern) for pattern in self._run.slow)


class Recorder:
    """Writes each report at once, as a line of JSON: a run that dies leaves what it knew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as results:
            results.write(json.dumps(line) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write({"collected": [item.nodeid for item in session.items]})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            detail = report.longreprtext
            self._write({"id": report.nodeid, "outcome": "failed", "when": "collect", "detail": detail})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
        line = {"id": report.nodeid, "outcome": outcome, "when": report.when, "duration_s": report.duration}
        if outcome != "passed":
            line["detail"] = _detail(report)
        self._write(line)


def _detail(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext
