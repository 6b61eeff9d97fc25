"""The demo from start to end: the scenarios, the verdict, the exit status."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import FrameType
from typing import NoReturn

from kombu.exceptions import KombuError
from redis import RedisError

from celery_redis_plus.demo.console import Console
from celery_redis_plus.demo.environment import DemoApps, Environment
from celery_redis_plus.demo.expectations import Outcome, exit_status
from celery_redis_plus.demo.scenarios import broadcasts, countdowns, crash, priorities, retries, worker_shutdown
from celery_redis_plus.errors import CeleryRedisPlusError
from celery_redis_plus.installation import DISTRIBUTION

Scenario = Callable[[Environment, Console], Outcome]

SCENARIOS: tuple[Scenario, ...] = (
    priorities.run_scenario,
    countdowns.run_scenario,
    retries.run_scenario,
    broadcasts.run_scenario,
    crash.run_scenario,
    worker_shutdown.run_scenario,
)

#: What can go wrong with a server, a connection or a worker; all else is a mistake of ours, and ends in a traceback.
COMMAND_ERRORS = (CeleryRedisPlusError, RedisError, KombuError, OSError)

#: What ends the demo early; a terminal that is closed sends SIGHUP.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
    *,
    url: str | None = None,
    verbose: bool = False,
    plain: bool = False,
    apps: DemoApps | None = None,
    scenarios: tuple[Scenario, ...] = SCENARIOS,
) -> int:
    """Run the demo and return the exit status: 0 if all expectations are met, 1 if not, 128 + n after signal n.

    Args:
        url: a server to use; None starts one.
        verbose: show the workers' logs.
        plain: no colours, nothing overwritten.
        apps: the app, and the workers'.
        scenarios: the scenarios to run.

    Raises:
        CeleryRedisPlusError: the server does not start or cannot be used.
    """
    console = Console(plain=plain)
    began = time.monotonic()
    with _signals_that_raise():
        try:
            with Environment(url, console, verbose=verbose, apps=apps) as environment:
                outcomes = run_scenarios(environment, console, scenarios)
        except Interrupted as interrupted:
            print(f"\nended by {interrupted.signal.name}; all that was started is gone", file=sys.stderr)
            return 128 + interrupted.signal
    return conclude(outcomes, console, time.monotonic() - began)


def run_scenarios(environment: Environment, console: Console, scenarios: tuple[Scenario, ...] = SCENARIOS) -> list[Outcome]:
    """Run the scenarios and print their expectations; where one fails, print the workers' logs."""
    console.scenario("celery-redis-plus demo", opening(environment))
    outcomes = []
    for run_scenario in scenarios:
        try:
            outcome = run_scenario(environment, console)
        except COMMAND_ERRORS as error:
            console.say(f"the demo cannot go on: {error}")
            outcomes.append(Outcome("The demo ended early", []))
            print_logs(environment, console)
            break
        for expectation in outcome.expectations:
            console.expectation(expectation)
        outcomes.append(outcome)
        if not outcome.holds:
            print_logs(environment, console)
    return outcomes


def opening(environment: Environment) -> str:
    """Return what is used, in words."""
    server = "an embedded Valkey server" if environment.embedded else f"the server {environment.task_log.address.display()}"
    versions = ", ".join(f"{name} {version(name)}" for name in (DISTRIBUTION, "celery", "kombu"))
    return (
        f"Real Celery workers on {server}; {versions}, Python {sys.version.split()[0]}. "
        f"The workers write down what they do; each expectation compares that with the required value. "
        f"Keys begin with {environment.prefix}"
    )


def print_logs(environment: Environment, console: Console) -> None:
    """Print the ends of the workers' logs."""
    for name, lines in environment.logs().items():
        console.say(f"the last lines of the log of worker {name}:")
        for line in lines:
            console.log(name, line)


def conclude(outcomes: list[Outcome], console: Console, seconds: float) -> int:
    """Print figures and verdict; return the exit status."""
    status = exit_status(outcomes)
    figures = {name: figure for outcome in outcomes for name, figure in outcome.figures.items()}
    if figures:
        console.scenario("Summary", "Figures of one short run on this machine; for comparisons see the benchmark.")
        console.table(("what", "measured"), list(figures.items()))
    expectations = [expectation for outcome in outcomes for expectation in outcome.expectations]
    true = sum(expectation.holds for expectation in expectations)
    failed = [outcome.title for outcome in outcomes if not outcome.holds or not outcome.expectations]
    text = f"{true} of {len(expectations)} expectations are met, in {seconds:.0f} seconds. "
    text += "All that was started is gone." if not failed else f"See: {', '.join(failed)}."
    console.verdict(text, good=status == 0)
    return status


class Interrupted(BaseException):
    """A signal asked the demo to end. As KeyboardInterrupt, it is no error, and must not be caught as one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


@contextmanager
def _signals_that_raise() -> Iterator[None]:
    """Raise `Interrupted` for the first signal; ignore those that follow, so that cleaning up is not cut short."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - as signal.signal wants it
        for ending in ENDING_SIGNALS:
            signal.signal(ending, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
