"""The model test that owns DESIGN's invariants.

`--weekly` runs ten times as many examples, `CRP_PROPERTY_EXAMPLES=2000` so many.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_redis_plus.broker.publishing import publisher
from celery_redis_plus.connection.address import Address
from tests.property.machine import Broker
from tests.property.world import LARGE
from tests.support.clock import scripts_read_a_key

if TYPE_CHECKING:
    import redis

    from tests.support.servers import Server

EXAMPLES = int(os.environ.get("CRP_PROPERTY_EXAMPLES", "0"))

PROFILE = settings(
    stateful_step_count=50,
    deadline=None,
    # CI tests the code, not its luck.
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
    print_blob=True,
    report_multiple_bugs=False,
)


@pytest.fixture
def machine(server: Server, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Broker]]:
    # The package has a function of the module's name.
    for module in (sys.modules["celery_redis_plus.stored_message"], publisher):
        monkeypatch.setattr(module, "LARGE_BODY", LARGE - 1)
    place = redis_client.connection_pool.connection_kwargs
    address = Address.from_parts(hostname=place["host"], port=place["port"], virtual_host=str(place.get("db", 0)))
    with scripts_read_a_key():
        yield type("Broker", (Broker,), {"client": redis_client, "address": address})


@pytest.mark.slow
@pytest.mark.timeout(3600 if not EXAMPLES else 86_400)
def test_any_sequence_of_commands_and_accidents_keeps_the_invariants(machine: type[Broker], *, weekly: bool) -> None:
    run_state_machine_as_test(machine, settings=settings(PROFILE, max_examples=EXAMPLES or (600 if weekly else 60)))
