"""The crew of a storm notices every worker that ends though no fault ended it."""

import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.chaos.crew import Crew
from tests.chaos.storm import Storm
from tests.support.waiting import wait_until
from tests.support.workers import Worker

#: Ready at once, and ends at SIGTERM with status 0.
PROGRAM = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('celery@x ready.', flush=True); signal.pause()"


@pytest.fixture
def crew(tmp_path):
    """One worker, which is ready."""

    def make(url, clock):
        worker = Worker("none", tmp_path, broker=url, forked=False)
        worker._command = [sys.executable, "-c", PROGRAM]  # noqa: SLF001 - Celery's start would take seconds
        return worker

    # The program uses no broker.
    crew = Crew(make, [SimpleNamespace(url=lambda: "none")])
    crew.start()
    (member,) = crew.members
    member.worker.wait_until_ready(10)
    yield crew
    member.worker.kill()


@pytest.fixture
def storm(crew):
    return Storm(None, crew, crew.members[0].proxy, 1, random.Random(1))


def end_from_outside(crew, signal="TERM"):
    (member,) = crew.members
    subprocess.run(["kill", f"-{signal}", str(member.worker.pid)], check=True)
    wait_until(lambda: not member.worker.running, 10)


def test_a_worker_that_runs_or_was_stopped_or_killed_did_not_end_by_itself(crew):
    (member,) = crew.members
    assert crew.ended_by_themselves() == []
    assert member.stop() == 0
    assert crew.ended_by_themselves() == []
    member.start()
    member.worker.wait_until_ready(10)
    member.kill()
    assert crew.ended_by_themselves() == []


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_the_log_of_a_worker_that_ended_by_itself_is_shown_even_while_a_fault_has_the_worker(signal, crew):
    end_from_outside(crew, signal)
    with crew.one(random.Random(1)):
        (found,) = crew.ended_by_themselves()
    assert "ended by itself" in found
    assert "celery@x ready." in found


@pytest.mark.parametrize("fault", ["kill_worker", "stop_worker"])
def test_a_fault_does_not_restart_a_worker_that_had_ended_by_itself(fault, crew, storm):
    end_from_outside(crew)
    storm.strike(fault)
    storm.calm()
    (failure,) = storm.failures
    assert failure.startswith(f"{fault}: AssertionError: ")
    assert "celery@x ready." in failure
    assert not crew.members[0].worker.running


def test_the_end_of_a_run_fails_with_a_worker_that_had_ended_by_itself(crew):
    end_from_outside(crew)
    with pytest.raises(AssertionError, match=r"ended by itself[^$]*celery@x ready"):
        crew.stop()
