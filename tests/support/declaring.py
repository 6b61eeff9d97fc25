"""Another process that deletes queues and declares them again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.fork_server import ROOT

#: Declares what it is told, a line of JSON each: URL, queue and declaration.
ELSEWHERE = """
import json, sys, kombu, celery_redis_plus
for line in sys.stdin:
    url, queue, declaration = json.loads(line)
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        channel.queue_delete(queue)
        channel.queue_declare(queue, **declaration)
    print("declared", flush=True)
"""


@pytest.fixture(scope="module")
def other_process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", ELSEWHERE]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        assert process.stdin
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.fixture
def declare_elsewhere(broker_url: str, other_process: subprocess.Popen[str]) -> Callable[..., None]:
    """Have another process delete a queue, and declare it again."""

    def run(queue: str, **declaration: Any) -> None:
        assert other_process.stdout
        print(json.dumps([broker_url, queue, {"durable": True, **declaration}]), file=other_process.stdin, flush=True)
        assert other_process.stdout.readline() == "declared\n"

    return run
