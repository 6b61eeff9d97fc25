"""Guards against a run that is green because every test on a real server was skipped."""

from __future__ import annotations

import pytest

#: A test that asks for one of these talks to a real server.
SERVER_FIXTURES = {"server", "own_server", "broker_url", "redis_client", "start_server", "start_worker", "cluster"}


class ServerTestGuard:
    """A pytest plugin that counts the tests that passed on a real server, and fails a run with too few."""

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum
        self.passed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
                item.add_marker("server")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and "server" in report.keywords:
            self.passed += 1

    @property
    def too_few(self) -> bool:
        return self.passed < self.minimum

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # A process of pytest-xdist counts its share only; the reports of all arrive at the process that started it.
        if hasattr(session.config, "workerinput"):
            return
        if self.too_few and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = f"{self.passed} of the passed tests ran on a real server"
        if self.too_few:
            terminalreporter.write_line(f"{line}: fewer than --min-server-tests={self.minimum}", red=True)
        elif self.passed:
            terminalreporter.write_line(line)
