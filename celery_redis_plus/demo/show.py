"""The demo from start to end: the chapters, the verdict, the exit status."""

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

from celery_redis_plus.demo.account import Account, make_account
from celery_redis_plus.demo.chapters import broadcasts, countdowns, crash, departure, priorities, retries
from celery_redis_plus.demo.claims import Outcome, exit_status
from celery_redis_plus.demo.stage import Cast, Stage
from celery_redis_plus.errors import CeleryRedisPlusError

Chapter = Callable[[Stage, Account], Outcome]

CHAPTERS: tuple[Chapter, ...] = (
    priorities.play,
    countdowns.play,
    retries.play,
    broadcasts.play,
    crash.play,
    departure.play,
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
    cast: Cast | None = None,
    chapters: tuple[Chapter, ...] = CHAPTERS,
) -> int:
    """Show the demo and return the exit status: 0 if all claims are true, 1 if not, 128 + n after signal n.

    Args:
        url: a server to use; None starts one.
        verbose: show the workers' logs.
        plain: no colours, nothing overwritten.
        cast: the app, and the workers'.
        chapters: what is played.

    Raises:
        CeleryRedisPlusError: the server does not start or cannot be used.
    """
    account = make_account(plain=plain)
    began = time.monotonic()
    with _signals_that_raise():
        try:
            with Stage(url, account, verbose=verbose, cast=cast) as stage:
                outcomes = tell(stage, account, chapters)
        except Interrupted as interrupted:
            print(f"\nended by {interrupted.signal.name}; all that was started is gone", file=sys.stderr)
            return 128 + interrupted.signal
    return conclude(outcomes, account, time.monotonic() - began)


def tell(stage: Stage, account: Account, chapters: tuple[Chapter, ...] = CHAPTERS) -> list[Outcome]:
    """Play the chapters and print their claims; where one fails, print the workers' logs."""
    account.chapter("celery-redis-plus demo", opening(stage))
    outcomes = []
    for play in chapters:
        try:
            outcome = play(stage, account)
        except COMMAND_ERRORS as error:
            account.say(f"the demo cannot go on: {error}")
            outcomes.append(Outcome("The demo ended early", []))
            print_logs(stage, account)
            break
        for claim in outcome.claims:
            account.claim(claim)
        outcomes.append(outcome)
        if not outcome.holds:
            print_logs(stage, account)
    return outcomes


def opening(stage: Stage) -> str:
    """Return what is used, in words."""
    server = "an embedded Valkey server" if stage.embedded else f"the server {stage.address.display()}"
    versions = ", ".join(f"{name} {version(name)}" for name in ("celery-redis-plus", "celery", "kombu"))
    return (
        f"Real Celery workers on {server}; {versions}, Python {sys.version.split()[0]}. "
        f"The workers write down what they do; each claim compares that with what must be. Keys begin with {stage.prefix}"
    )


def print_logs(stage: Stage, account: Account) -> None:
    """Print the ends of the workers' logs."""
    for name, lines in stage.logs().items():
        account.say(f"the last lines of the log of worker {name}:")
        for line in lines:
            account.log(name, line)


def conclude(outcomes: list[Outcome], account: Account, seconds: float) -> int:
    """Print figures and verdict; return the exit status."""
    status = exit_status(outcomes)
    figures = {name: figure for outcome in outcomes for name, figure in outcome.figures.items()}
    if figures:
        account.chapter("Summary", "Figures of one short run on this machine; for comparisons see the benchmark.")
        account.table(("what", "measured"), list(figures.items()))
    claims = [claim for outcome in outcomes for claim in outcome.claims]
    true = sum(claim.holds for claim in claims)
    failed = [outcome.title for outcome in outcomes if not outcome.holds or not outcome.claims]
    text = f"{true} of {len(claims)} claims are true, in {seconds:.0f} seconds. "
    text += "All that was started is gone." if not failed else f"See: {', '.join(failed)}."
    account.verdict(text, good=status == 0)
    return status


class Interrupted(BaseException):
    """A signal asked the demo to end. As KeyboardInterrupt, it is no error, and nobody may catch it as one."""

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
