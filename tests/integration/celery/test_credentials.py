"""A worker and a publisher whose credentials are rotated all the time."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.celery.rotation import FILE_VARIABLE, FileProvider, Rotation
from tests.support.servers import new_server

if TYPE_CHECKING:
    from celery_redis_plus.testing import EmbeddedServer

#: Seconds of the test, and between two rotations: `CRP_TEST_ROTATION=60,5` is the long form.
DURATION_S, PERIOD_S = map(float, os.environ.get("CRP_TEST_ROTATION", "3,1").split(","))
#: Seconds after a rotation's period in which every connection has to be logged in anew.
PATIENCE_S = 20.0


@pytest.fixture
def own_server():
    with new_server() as server:
        yield server


#: They wait for the server in greenlets, which a rotation has to wake.
GREENLETS = [
    pytest.param("gevent", marks=pytest.mark.slow),
    pytest.param("eventlet", marks=[pytest.mark.slow, pytest.mark.weekly]),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", ["prefork", "solo", *GREENLETS])
def test_no_task_fails_while_the_credentials_are_rotated(
    pool, own_server: EmbeddedServer, celery_app, celery_worker, notes, tmp_path
):
    client = own_server.client()
    rotation = Rotation(client, tmp_path / "credentials")
    provider = FileProvider(rotation.path)
    url = own_server.url()
    app = celery_app("configured", url, broker_transport_options={"credential_provider": provider})
    options = {"credential_provider": "tests.integration.celery.rotation:FileProvider"}
    worker = celery_worker(
        "configured", url, pool=pool, quiet=False, config={"broker_transport_options": options},
        env={FILE_VARIABLE: str(rotation.path)},
    )  # fmt: skip
    sent = 0
    ends_at = time.monotonic() + DURATION_S
    while time.monotonic() < ends_at:
        rotation.rotate()
        rotated_at = time.monotonic()
        # The users before are deleted only when nobody is logged in as one any more: on a busy machine that takes its time.
        while time.monotonic() < rotated_at + PERIOD_S or rotation.users() != {rotation.user}:
            assert time.monotonic() < rotated_at + PERIOD_S + PATIENCE_S, f"{rotation.users()}, not {rotation.user}"
            app.send_task("c.note", [pool, str(sent)])
            sent += 1
            time.sleep(0.05)
    ran = notes.wait_for(pool, sent, 30, worker.tail)
    provider.stop()
    client.close()

    assert ran == dict.fromkeys(map(str, range(sent)), 1)
    log = worker.log()
    assert "lost" not in log, worker.tail(400)
    assert "again failed" not in log, worker.tail(400)
