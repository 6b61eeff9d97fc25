"""The last release and this version share a broker: its data, its publishers, its workers, and their deaths.

The release is read from git's history; without it (an archive of the sources, a shallow clone) these tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kombu
import pytest

from celery_redis_plus.keys import Keys
from tests.integration.celery.conftest import celery_app, celery_worker, notes  # noqa: F401
from tests.support.checking import found
from tests.support.inbox import declare
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis

    from tests.support.workers import Worker

ROOT = Path(__file__).parents[2]
#: Stands for the last release until there is one; from then on, its tag.
RELEASE = "5b12f72"
PUBLISH = """
import sys
import celery_redis_plus
from tests.integration.celery.app import make_app
assert celery_redis_plus.__file__.startswith(sys.argv[2]), celery_redis_plus.__file__
app = make_app("configured", sys.argv[1], {})
for number in range(int(sys.argv[4])):
    app.send_task("c.note", [sys.argv[3], f"{number}"], priority=number % 3, countdown=1 if number % 5 == 0 else None)
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that has the release's package, its scripts inside, as an installation has them."""
    folder = tmp_path_factory.mktemp("release")
    archive = subprocess.run(["git", "archive", RELEASE, "celery_redis_plus", "lua"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"git has no commit {RELEASE} here: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    (folder / "lua").rename(folder / "celery_redis_plus" / "lua")
    return folder


@pytest.fixture(autouse=True)
def check_afterwards(redis_client: redis.Redis) -> Iterator[None]:
    """See that `celery-redis-plus check` finds nothing when the workers have ended."""
    yield
    assert found(redis_client, Keys()) == []


@pytest.fixture
def old_python(release: Path) -> dict[str, str]:
    """Environment variables with which Python imports the release."""
    return {"PYTHONPATH": os.pathsep.join([str(release), str(ROOT)])}


@pytest.fixture
def publish_as_released(release: Path, old_python: dict[str, str], broker_url: str) -> Callable[[str, int], None]:
    def publish(name: str, count: int) -> None:
        command = [sys.executable, "-c", PUBLISH, broker_url, str(release), name, str(count)]
        environment = {**os.environ, **old_python}
        subprocess.run(command, env=environment, cwd=release, check=True, timeout=60, stderr=subprocess.PIPE, text=True)

    return publish


@pytest.fixture
def start_released(
    release: Path,
    old_python: dict[str, str],
    celery_worker: Callable[..., Worker],  # noqa: F811 - the fixture
) -> Iterator[Callable[..., Worker]]:
    def start(**options: Any) -> Worker:
        # Python looks into the working directory first.
        return celery_worker("configured", env=old_python, cwd=release, **options)

    return start


def publish_now(app: Any, name: str, count: int) -> None:
    for number in range(count):
        app.send_task("c.note", [name, f"{number}"], priority=number % 3, countdown=1 if number % 5 == 0 else None)


@pytest.mark.slow
def test_a_worker_runs_what_the_release_has_stored(publish_as_released, celery_worker, notes):  # noqa: F811
    publish_as_released("stored", 20)
    worker = celery_worker("configured")
    assert set(notes.wait_for("stored", 20, message=worker.tail).values()) == {1}


@pytest.mark.slow
def test_the_release_runs_what_this_version_has_stored(celery_app, start_released, notes):  # noqa: F811
    publish_now(celery_app("configured"), "stored", 20)
    worker = start_released()
    assert set(notes.wait_for("stored", 20, message=worker.tail).values()) == {1}


@pytest.mark.slow
def test_the_release_is_refused_by_a_broker_whose_shards_it_does_not_know(publish_as_released, broker_url, redis_client):
    with kombu.Connection(broker_url, transport_options={"shards": 4}) as connection:
        declare(connection.channel(), "q")
    before = set(redis_client.keys())
    with pytest.raises(subprocess.CalledProcessError) as failed:
        publish_as_released("stored", 1)
    assert "format version 2" in failed.value.stderr
    # That release looks at the format behind its first exchange; no queue and no message of its own is there.
    assert set(redis_client.keys()) - before <= {b"exchanges"}


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["released", "new"])
def test_each_takes_over_what_the_other_held_when_it_was_killed(
    celery_app, celery_worker, start_released, notes, publish_as_released, killed  # noqa: F811
):  # fmt: skip
    config = {"task_acks_late": True, "broker_transport_options": {"connection_lost_grace": 0.5}}
    starts = {"released": start_released, "new": lambda **options: celery_worker("configured", **options)}
    first = starts.pop(killed)(config=config)
    app = celery_app("configured")
    app.send_task("c.wait", ["held", "1"])
    wait_until(lambda: notes.started("held") == ["1"], 30, first.tail)
    (second_start,) = starts.values()
    second = second_start(config=config)
    publish_as_released("beside, released", 10)
    publish_now(app, "beside, new", 10)
    for name in ("beside, released", "beside, new"):
        notes.wait_for(name, 10, message=second.tail)

    first.kill()
    wait_until(lambda: notes.started("held") == ["1", "1"], 30, second.tail)
    notes.go("held")
    notes.wait_for("held", 1, message=second.tail)
