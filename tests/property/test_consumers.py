"""The model test of consumers: who gets a message, whoever comes, dies, freezes or is cancelled.

`--weekly` runs ten times as many examples, `CRP_PROPERTY_EXAMPLES=2000` so many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from celery_redis_plus.connection.address import Address
from tests.property.serving import Serving
from tests.property.test_invariants import EXAMPLES, PROFILE
from tests.support.clock import scripts_read_a_key

if TYPE_CHECKING:
    import redis

    from tests.support.servers import Server

CONSUMERS = settings(PROFILE, stateful_step_count=25)


@pytest.fixture
def machine(server: Server, redis_client: redis.Redis) -> Iterator[type[Serving]]:
    place = redis_client.connection_pool.connection_kwargs
    address = Address.from_parts(hostname=place["host"], port=place["port"], virtual_host=str(place.get("db", 0)))
    with scripts_read_a_key():
        yield type("Serving", (Serving,), {"client": redis_client, "address": address})


@pytest.mark.slow
@pytest.mark.timeout(3600 if not EXAMPLES else 86_400)
def test_whatever_consumers_do_messages_go_to_who_may_have_them(machine: type[Serving], *, weekly: bool) -> None:
    run_state_machine_as_test(machine, settings=settings(CONSUMERS, max_examples=EXAMPLES or (250 if weekly else 25)))
