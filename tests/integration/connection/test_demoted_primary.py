"""A primary that becomes a replica: its answers end the connections, and the next call opens another one."""

import pytest

from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.errors import ReadOnlyReplica
from celery_redis_plus.scripts import script
from tests.support.servers import new_server
from tests.support.waiting import wait_until

#: Where the demoted one finds its primary: nobody has to be there.
NOWHERE = ("127.0.0.1", 1)


@pytest.fixture(scope="module")
def demotable():
    with new_server() as server:
        yield server


@pytest.fixture
def demote(demotable):
    """Make the server a replica; it is a primary again after the test."""
    with demotable.client() as admin:
        yield lambda: admin.replicaof(*NOWHERE)
        admin.replicaof("NO", "ONE")


@pytest.fixture
def lost(open_commands, demotable):
    """Open connections that note their failure: `lost()` returns the connection and the list of its failures."""

    def make(kind=None):
        connection = open_commands(**({} if kind is None else {"kind": kind}), port=demotable.port)
        connection.connect()
        failures = []
        connection.on_failure = lambda: failures.append(connection)
        return connection, failures

    return make


CALLS = {
    "command": lambda commands: commands.command("SET", "key", "value"),
    "script": lambda commands: commands.call(script("increment_counters"), [b"meta:{q}"], "published", 0),
    "pipeline": lambda commands: commands.pipeline([("SET", "key", "value"), ("SET", "key", "other")]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_refused_write_ends_the_connection(lost, demote, call):
    commands, failures = lost()
    demote()
    with pytest.raises(ReadOnlyReplica):
        call(commands)
    assert (commands.connected, failures) == (False, [commands])


def test_a_refused_write_that_nobody_waits_for_ends_the_connection_with_its_answer(lost, demote):
    commands, failures = lost()
    answers = []
    demote()
    for _ in range(2):
        commands.command_nowait("SET", "key", "value", done=lambda *answer: answers.append(answer), buffered=True)
    with pytest.raises(ReadOnlyReplica):
        commands.read_until()
    assert [type(error) for _, error in answers] == [ReadOnlyReplica] * 2
    assert (commands.connected, failures) == (False, [commands])


def test_a_call_behind_a_refused_write_has_an_unknown_outcome(lost, demote):
    commands, _ = lost()
    demote()
    commands.command_nowait("SET", "key", "value", done=lambda *_: None)
    with pytest.raises(ReadOnlyReplica):
        commands.command("GET", "key")
    assert commands.outcome_unknown


def test_a_blocked_command_ends_with_its_connection(lost, demote, demotable):
    waiting, failures = lost(BlockingConnection)
    waiting.start("BZMPOP", 0, 1, "key", "MIN")
    with demotable.client() as admin:
        wait_until(lambda: admin.info("clients")["blocked_clients"])
    demote()
    with pytest.raises(ReadOnlyReplica, match="instance state changed"):
        waiting.finish()
    assert failures == [waiting]
