"""Open connections log in again when there are newer credentials."""

from __future__ import annotations

import pytest
from redis.auth.token import SimpleToken
from redis.credentials import CredentialProvider, StreamingCredentialProvider

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.server_check import ServerCheck
from celery_redis_plus.options import Options
from celery_redis_plus.scripts import script
from tests.support.waiting import wait_until


class Streaming(StreamingCredentialProvider):
    def get_credentials(self):
        return "first", "s3cret"

    def on_next(self, callback):
        self._tell = callback

    def on_error(self, callback):
        pass

    def is_streaming(self):
        return True

    def renew(self, user, password="s3cret"):
        self._tell(SimpleToken(password, -1, 0, {"oid": user}))


class Polled(CredentialProvider):
    asked = 0

    def get_credentials(self):
        self.asked += 1
        return ("first" if self.asked == 1 else "second"), "s3cret"


@pytest.fixture
def users(plain_server):
    with plain_server.client() as client:
        for user in ("first", "second"):
            client.execute_command("ACL", "SETUSER", user, "on", ">s3cret", "~*", "&*", "+@all")
        yield client
        client.execute_command("ACL", "DELUSER", "first", "second")


@pytest.fixture
def open_connection(plain_server, users):
    opened = []

    def make(kind, provider, **options):
        given = Options.from_mapping({"credential_provider": provider, **options})
        connector = Connector(Address.from_url(plain_server.url()), given, check=ServerCheck())
        opened.append(kind(connector, "commands", timeout=5))
        opened[-1].connect()
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


def test_the_next_command_is_sent_as_the_new_user(open_connection, users):
    commands = open_connection(CommandConnection, provider := Streaming())
    assert commands.command("ACL", "WHOAMI") == b"first"
    generation = commands.generation
    provider.renew("second")
    users.execute_command("ACL", "SETUSER", "second", "resetkeys")
    assert commands.login_due
    assert commands.command("ACL", "WHOAMI") == b"second"
    assert not commands.login_due
    users.execute_command("ACL", "DELUSER", "first")
    assert commands.command("PING") == b"PONG"
    assert commands.generation == generation


def test_replies_keep_their_order_when_a_login_comes_between(open_connection):
    commands = open_connection(CommandConnection, provider := Streaming())
    answers = []
    commands.command_nowait("ECHO", "a", done=lambda *answer: answers.append(answer), buffered=True)
    provider.renew("second")
    commands.command_nowait("ACL", "WHOAMI", done=lambda *answer: answers.append(answer), buffered=True)
    assert commands.pipeline([("ECHO", "c"), ("ECHO", "d")]) == [b"c", b"d"]
    assert commands.call(script("notify"), [b"wakeup:{q}"], 1000) is not None
    assert answers == [(b"a", None), (b"second", None)]


def test_a_script_that_the_server_has_lost_is_sent_again_behind_the_login(open_connection, users):
    commands = open_connection(CommandConnection, provider := Streaming())
    commands.call(script("notify"), [b"wakeup:{q}"], 1000)
    users.script_flush()
    answers = []
    commands.send_nowait(script("notify"), [b"wakeup:{q}"], 1000, done=lambda *answer: answers.append(answer))
    provider.renew("second")
    assert commands.command("ECHO", "a") == b"a"
    assert commands.command("ACL", "WHOAMI") == b"second"
    assert [error for _, error in answers] == [None]


def test_a_refused_login_is_logged_without_the_secret_and_the_connection_stays(open_connection, users, caplog, monkeypatch):
    monkeypatch.setattr("celery_redis_plus.connection.persistent_connection.LOGIN_RETRY_S", 0.2)
    commands = open_connection(CommandConnection, provider := Streaming())
    generation = commands.generation
    provider.renew("second", "wr0ng")
    assert commands.command("ACL", "WHOAMI") == b"first"
    assert "commands: logging in again failed" in caplog.text
    assert "wr0ng" not in caplog.text
    assert not commands.login_due
    users.execute_command("ACL", "SETUSER", "second", ">wr0ng")
    wait_until(lambda: commands.login_due, 5)
    assert commands.command("ACL", "WHOAMI") == b"second"
    assert not commands.login_due
    assert commands.generation == generation


def test_a_blocking_connection_logs_in_before_its_next_wait(open_connection):
    blocking = open_connection(BlockingConnection, provider := Streaming())
    provider.renew("second", "wr0ng")
    blocking.start("ACL", "WHOAMI")
    assert blocking.finish() == b"first"
    provider.renew("second")
    blocking.start("ACL", "WHOAMI")
    assert blocking.finish() == b"second"


def test_credentials_that_are_too_old_are_asked_for_again(open_connection):
    commands = open_connection(CommandConnection, Polled(), credential_max_age=1)
    assert commands.command("ACL", "WHOAMI") == b"first"
    commands._login = type(commands._login)(0, commands._login.at - 1)  # noqa: SLF001 - a second later
    assert commands.command("ACL", "WHOAMI") == b"second"
    assert not commands.login_due
