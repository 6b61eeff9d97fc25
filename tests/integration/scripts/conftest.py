from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from celery_redis_plus.broker.publishing import publisher
from tests.integration.scripts.workshop import LARGE, Workshop
from tests.integration.transport.conftest import connect
from tests.support.clock import scripts_read_a_key

__all__ = ["connect"]


@pytest.fixture
def shop(redis_client, monkeypatch) -> Iterator[Callable[[], Workshop]]:
    """Return a function that makes a queue with messages in every place; the time is the one that the test sets."""
    # The package has a function of the module's name.
    for module in (sys.modules["celery_redis_plus.stored_message"], publisher):
        monkeypatch.setattr(module, "LARGE_BODY", LARGE)
    opened: list[Workshop] = []

    def make() -> Workshop:
        opened.append(Workshop(redis_client))
        return opened[-1]

    with scripts_read_a_key():
        yield make
    for one in opened:
        one.commands.close()
