"""Lets a worker look through its sets of requests while threads of its pool change them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet, ref

from celery.worker import state


class SteadyWeakSet(WeakSet[Any]):
    """A set that is looked through as it was when the look began: `set.copy` is one step, which no other thread interrupts."""

    #: What a WeakSet keeps, in every Python that this package supports.
    data: set[ref[Any]]

    def __iter__(self) -> Iterator[Any]:
        for reference in self.data.copy():
            member = reference()
            if member is not None:
                yield member


def let_threads_change_requests() -> None:
    """Have Celery's sets of requests bear that a thread ends a task while another looks through them; idempotent.

    Celery looks through them when a connection is lost, for `inspect` and when a worker ends, while each thread of a pool takes
    out the request that it has run. "Set changed size during iteration" then ends a worker in the midst of its tasks
    (https://github.com/celery/celery/issues/7162, as of Celery 5.7).
    """
    for requests in vars(state).values():
        if type(requests) is WeakSet:
            requests.__class__ = SteadyWeakSet
