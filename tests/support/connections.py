"""Connections for tests of them, scripts to send, and what collects the answers."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.options import Options
from celery_redis_plus.scripts import Script

ADD = Script.of("add", "#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
FAIL = Script.of("fail", "#!lua\nreturn redis.error_reply('ERR no')")


@contextmanager
def opened_connections():
    """Give a function that opens a connection to a URL, with transport options; they are closed in the end."""
    with ExitStack() as opened:

        def make(url, kind=CommandConnection, **options):
            connection = kind(Connector(Address.from_url(url), Options.from_mapping(options)), "tested", timeout=5.0)
            opened.enter_context(closing(connection))
            connection.connect()
            return connection

        yield make


class Answers:
    """Collects what posted scripts answer."""

    def __init__(self):
        self.replies, self.errors = [], []

    def __call__(self, reply, error):
        (self.errors if error else self.replies).append(error or reply)
