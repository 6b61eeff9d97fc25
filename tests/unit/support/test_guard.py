from types import SimpleNamespace

import pytest

from tests.support.guard import ServerTestGuard


def finish(guard, exitstatus, **config):
    session = SimpleNamespace(exitstatus=exitstatus, config=SimpleNamespace(**config))
    guard.pytest_sessionfinish(session, exitstatus)
    return session.exitstatus


def report(**changes):
    return SimpleNamespace(**{"when": "call", "passed": True, "keywords": {"server": 1}, **changes})


def test_only_passed_tests_on_a_server_count():
    guard = ServerTestGuard(minimum=1)
    for other in (report(when="setup"), report(passed=False), report(keywords={})):
        guard.pytest_runtest_logreport(other)

    assert guard.passed == 0
    guard.pytest_runtest_logreport(report())
    assert guard.passed == 1


@pytest.mark.parametrize("exitstatus", [pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED])
def test_run_with_too_few_fails(exitstatus):
    assert finish(ServerTestGuard(minimum=1), exitstatus) == pytest.ExitCode.TESTS_FAILED


def test_run_with_enough_passes():
    guard = ServerTestGuard(minimum=1)
    guard.pytest_runtest_logreport(report())

    assert finish(guard, pytest.ExitCode.OK) == pytest.ExitCode.OK


def test_a_process_that_runs_a_share_of_the_tests_does_not_judge_the_run():
    guard = ServerTestGuard(minimum=1)

    assert finish(guard, pytest.ExitCode.OK, workerinput={}) == pytest.ExitCode.OK


def test_interrupted_run_stays_interrupted():
    assert finish(ServerTestGuard(minimum=1), pytest.ExitCode.INTERRUPTED) == pytest.ExitCode.INTERRUPTED
