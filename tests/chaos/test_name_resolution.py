"""A worker that starts before the network's name server does (issue B, Connections)."""

import pytest

from tests.chaos.app import DNS_VARIABLE
from tests.chaos.state import empty
from tests.support.waiting import wait_until


@pytest.mark.parametrize("pool", ["solo", "threads", "prefork"])
def test_a_worker_starts_as_soon_as_its_brokers_name_is_known(*, pool, own_server, ledger, tmp_path, chaos_app, chaos_worker):
    known = tmp_path / "known"
    worker = chaos_worker(
        f"redisplus://broker.invalid:{own_server.port}/0", visibility_timeout=60, pool=pool, env={DNS_VARIABLE: str(known)}
    )
    chaos_app(own_server.url(), visibility_timeout=60).send_task("chaos.run", ["t"])
    worker.start(wait=False)
    wait_until(lambda: worker.log().count("Cannot connect") == 2, 30, worker.tail)
    assert "name resolution" in worker.log()
    known.touch()
    worker.wait_until_ready()
    with own_server.client() as client:
        wait_until(lambda: ledger.ended()["t"] == 1 and empty(client, "celery"), 20, worker.tail)
    assert worker.stop() == 0
