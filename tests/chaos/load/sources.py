"""All that publishes in a storm, and the subscribers of its broadcasts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tests.chaos.app import EARLY
from tests.chaos.load import subscribers
from tests.chaos.load.publishing import FeaturePublisher
from tests.chaos.load.subscribers import Subscriber
from tests.chaos.publishers import Publisher
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.chaos.ledger import Ledger
    from tests.chaos.storm import Storm

#: Of the publishers of plain tasks: the beginnings of their tasks' names.
PREFIXES = "ab"
#: Seconds between two messages that use a feature.
FEATURE_PAUSE_S = 0.03
#: Seconds between two tasks that are acked early.
EARLY_PAUSE_S = 0.003
#: The part of the tasks that has a priority.
PRIORITISED = 0.1
#: Plain tasks that are published and have not ended, at most.
BACKLOG = 300
#: The part of the plain tasks that has a countdown.
DELAYED = 0.03
#: Seconds within which all tasks of a run by counts are published.
LONGEST_S = 1800


class Sources:
    """What publishes, and the subscribers.

    Two publishers of plain tasks, one of tasks that are acked before they run, one that uses a feature in each message; a durable
    and an ordinary subscriber.
    """

    def __init__(
        self, storm: Storm, ledger: Ledger, app: Callable[..., Any], *, length: Callable[[random.Random], float], most: int | None
    ) -> None:
        """Publish `most` plain tasks each (None: until the end), by apps that `app` makes, with these options each."""
        self._storm, self._ledger = storm, ledger
        plain, replicating = app(), app(wait_replicas=1)
        self.plain = [
            Publisher(
                plain,
                name,
                length=length,
                most=most,
                enough=lambda: storm.publishers_rest or self.behind() > BACKLOG + storm.written_off,
                delayed=DELAYED,
                prioritised=PRIORITISED,
                replicating=lambda: replicating if storm.replicated else None,
            )
            for name in PREFIXES
        ]
        times = {"length": length, "most": most, "prioritised": PRIORITISED, "pause_s": EARLY_PAUSE_S}
        self.early = Publisher(app(), "e", task=EARLY, enough=self.plain[0].enough, **times)
        self.features = FeaturePublisher(app(), "f", length=length, pause_s=FEATURE_PAUSE_S, enough=lambda: storm.publishers_rest)
        self.publishers = [*self.plain, self.early, self.features]
        url = storm.publishers.url()
        self.readers = [Subscriber(url, f"reader-{kind}", durable=kind == "durable") for kind in ("durable", "ordinary")]

    def behind(self) -> int:
        """Return how many plain tasks were published and have not ended, by what was read of the ledger."""
        return sum(publisher.sent for publisher in self.plain) - self._ledger.ended_of(PREFIXES)

    def start(self) -> None:
        """Subscribe, and publish from now on."""
        for reader in self.readers:
            reader.start()
            if not reader.ready.wait(30):
                raise TimeoutError(f"{reader.name} does not consume: {reader.error}")
        self._storm.senders += self.publishers
        for publisher in self.publishers:
            publisher.start()

    def finish(self, *, at_once: bool, timeout_s: float) -> None:
        """Wait until all is published, or end `at_once`; then until all broadcasts are delivered, for `timeout_s` at most."""
        for publisher in self.publishers:
            if at_once or publisher is self.features:
                publisher.stopping.set()
            # They go by what was read.
            wait_until(
                lambda publisher=publisher: self._ledger.read() is not None and not publisher.is_alive(),
                LONGEST_S,
                interval_s=0.1,
            )
            publisher.finish()
        subscribers.finish(self.readers, self.features.app, timeout_s)

    def names(self) -> set[str]:
        """Return the tasks that have to come to their end: those that were confirmed, and that the server has not lost.

        Which of those that are acked early were lost with their worker is the judge's to say.
        """
        return {name for publisher in self.publishers if publisher is not self.early for name in self._kept(publisher)}

    def early_names(self) -> set[str]:
        """Return the tasks that are acked before they run, of which the same is true."""
        return set(self._kept(self.early))

    def _kept(self, publisher: Publisher) -> Iterable[str]:
        keeps = self._storm.keeps
        return (one.name for one in publisher.confirmed if keeps(one.began_at, one.confirmed_at, replicated=one.replicated))
