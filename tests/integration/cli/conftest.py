"""kombu connections, as the transport's tests have them, and the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from celery_redis_plus.cli.main import main
from tests.integration.transport.conftest import channel, connect, connection  # noqa: F401
from tests.support.kombu_installation import old, received  # noqa: F401


class Printed(NamedTuple):
    """What a command left: its exit status and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object that was printed."""
        (one,) = self.lines
        return one

    @property
    def json_document(self) -> Any:
        """The JSON document that was printed over several lines."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON objects, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def cli(broker_url: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """Run a command on the test's broker: `cli("dead-letters", "list", "q")`."""

    def run(*arguments: str) -> Printed:
        capsys.readouterr()
        status = main(["--broker", broker_url, *arguments])
        return Printed(status, *capsys.readouterr())

    return run
