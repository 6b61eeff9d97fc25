"""Connections for tests of them, scripts to send, and what collects the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.options import Options
from celery_redis_plus.scripts import Script

if TYPE_CHECKING:
    from celery_redis_plus.connection.persistent_connection import PersistentConnection

ADD = Script.of("add", "#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
FAIL = Script.of("fail", "#!lua\nreturn redis.error_reply('ERR no')")


@contextmanager
def opened_connections() -> Iterator[Callable[..., PersistentConnection]]:
    """Give a function that opens a connection to a URL, with transport options; they are closed in the end."""
    with ExitStack() as opened:

        def make(url: str, kind: type[PersistentConnection] = CommandConnection, **options: Any) -> PersistentConnection:
            connection = kind(Connector(Address.from_url(url), Options.from_mapping(options)), "tested", timeout=5.0)
            opened.enter_context(closing(connection))
            connection.connect()
            return connection

        yield make


class Answers:
    """Collects what posted scripts answer."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.errors: list[Exception] = []

    def __call__(self, reply: Any, error: Exception | None) -> None:
        if error:
            self.errors.append(error)
        else:
            self.replies.append(reply)
