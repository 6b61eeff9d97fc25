"""The demo's results from its scenarios; no server, no workers."""

import os
import signal

import pytest

from celery_redis_plus.demo import main
from celery_redis_plus.demo.console import Console
from celery_redis_plus.demo.environment import DemoFailed, Environment
from celery_redis_plus.demo.expectations import Expectation, Outcome

TRUE = Expectation.equal("answers", 2, 2)
FALSE = Expectation.equal("answers", 1, 2)


class EnvironmentWithoutServer:
    embedded = True
    prefix = "crp-demo-1234:"
    left = False

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.left = True

    def logs(self):
        return [("one", ["[ERROR] the last line of its log"])]


@pytest.fixture
def environment():
    return EnvironmentWithoutServer()


@pytest.fixture
def run(environment, capsys):
    """Run the demo with other scenarios; return the exit status and what was printed."""

    def run_scenarios(*scenarios):
        status = main.run_scenarios(environment, Console(), scenarios)
        assert environment.left
        return status, capsys.readouterr().out

    return run_scenarios


def scenario(*expectations):
    return lambda environment, console: Outcome("A scenario", list(expectations))


def test_true_claims_end_with_status_zero(run):
    status, output = run(scenario(TRUE), scenario(TRUE, TRUE))

    assert status == 0
    assert "3 of 3 expectations are met" in output
    assert "last line of its log" not in output


def test_a_false_claim_ends_with_status_one_and_shows_the_logs(run):
    status, output = run(scenario(FALSE), scenario(TRUE))

    assert status == 1
    assert "FALSE answers: 1 (must be 2)" in output
    assert "[ERROR] the last line of its log" in output
    assert "1 of 2 expectations are met" in output
    assert "See: A scenario" in output


@pytest.mark.parametrize("error", [DemoFailed("worker 'one' ended unexpectedly"), ConnectionError("gone")])
def test_a_scenario_that_fails_ends_the_demo_with_status_one_and_shows_the_logs(run, error):
    def fail(environment, console):
        raise error

    status, output = run(scenario(TRUE), fail, scenario(TRUE))

    assert status == 1
    assert f"cannot go on: {error}" in output
    assert "[ERROR] the last line of its log" in output
    assert "1 of 1 expectations are met" in output
    assert "See: The demo ended early" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_demo_with_its_number_and_leaves_the_handlers_as_they_were(environment, run, number):
    before = signal.getsignal(number)

    with pytest.raises(SystemExit) as ended:
        run(lambda environment, console: os.kill(os.getpid(), number))

    assert ended.value.code == 128 + number
    assert environment.left
    assert signal.getsignal(number) is before


def test_a_url_with_transport_options_is_refused():
    with pytest.raises(DemoFailed, match="global_keyprefix"), Environment("redis://h?global_keyprefix=x", Console()):
        pass
