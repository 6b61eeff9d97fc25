"""The demo from start to end: the scenarios, the verdict, the exit status."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from types import FrameType
from typing import NoReturn

from kombu.exceptions import KombuError
from redis import RedisError

from celery_redis_plus.demo.console import Console
from celery_redis_plus.demo.environment import Environment
from celery_redis_plus.demo.expectations import Outcome, exit_status
from celery_redis_plus.demo.scenarios import SCENARIOS
from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.installation import DISTRIBUTION

Scenario = Callable[[Environment, Console], Outcome]

#: What can go wrong with a server, a connection or a worker; all else is a mistake of ours, and ends in a traceback.
COMMAND_ERRORS = (CeleryRedisPlusError, RedisError, KombuError, OSError)

#: What ends the demo early; a terminal that is closed sends SIGHUP.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(*, url: str | None = None, verbose: bool = False, plain: bool = False) -> int:
    """Run the demo and return the exit status: 0 if all expectations are met, 1 if not.

    Args:
        url: a server to use; None starts one.
        verbose: show the workers' logs.
        plain: no colours, nothing overwritten.

    Raises:
        CeleryRedisPlusError: the server does not start or cannot be used.
        SystemExit: a signal has ended it.
    """
    console = Console(plain=plain)
    return run_scenarios(Environment(url, console, verbose=verbose), console, SCENARIOS)


def run_scenarios(environment: Environment, console: Console, scenarios: Sequence[Scenario]) -> int:
    """Run scenarios in an environment that is not entered yet; return the exit status and raise as `run` does."""
    began = time.monotonic()
    outcomes = []
    with _ended_by_signals(), environment:
        console.scenario("celery-redis-plus demo", opening(environment))
        for scenario in scenarios:
            outcomes.append(_outcome(scenario, environment, console))
            if not outcomes[-1].expectations:
                break
    status = exit_status(outcomes)
    expectations = [expectation for outcome in outcomes for expectation in outcome.expectations]
    true = sum(expectation.holds for expectation in expectations)
    failed = [outcome.title for outcome in outcomes if not outcome.holds or not outcome.expectations]
    text = f"{true} of {len(expectations)} expectations are met, in {time.monotonic() - began:.0f} seconds. "
    text += "All that was started is gone." if not failed else f"See: {', '.join(failed)}."
    console.verdict(text, good=status == 0)
    return status


def _outcome(scenario: Scenario, environment: Environment, console: Console) -> Outcome:
    """Run a scenario and print its expectations; where one is not met, print the workers' logs."""
    try:
        outcome = scenario(environment, console)
    except COMMAND_ERRORS as error:
        console.say(f"the demo cannot go on: {error}")
        outcome = Outcome("The demo ended early", [])
    for expectation in outcome.expectations:
        console.expectation(expectation)
    if not outcome.expectations or not outcome.holds:
        for name, lines in environment.logs():
            console.say(f"the last lines of the log of worker {name}:")
            for line in lines:
                console.log(name, line)
    return outcome


def opening(environment: Environment) -> str:
    """Return what is used, in words."""
    server = "an embedded Valkey server" if environment.embedded else f"the server {environment.address}"
    versions = ", ".join(f"{name} {version(name)}" for name in (DISTRIBUTION, "celery", "kombu"))
    return (
        f"Real Celery workers on {server}; {versions}, Python {sys.version.split()[0]}. "
        f"The workers write down what they do; each expectation compares that with the required value. "
        f"Keys begin with {environment.prefix}"
    )


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Exit with 128 + n at the first signal n; ignore those that follow, so that cleaning up is not cut short."""

    def end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - as signal.signal wants it
        for ending in ENDING_SIGNALS:
            signal.signal(ending, signal.SIG_IGN)
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
