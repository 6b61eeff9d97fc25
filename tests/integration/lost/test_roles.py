"""kill -9 of a process is noticed within seven seconds in each of its roles, by others or by the next process."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import suppress

import kombu
import pytest
from kombu.exceptions import ChannelError

from tests.integration.lost.role_process import FULL, MINE, NEWS, PLAYED, SINGLE
from tests.support.apps import JOURNAL_DB
from tests.support.fork_server import fork_server
from tests.support.inbox import declare, publish
from tests.support.machine_time import machine_time
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.same_everywhere

#: Seconds after a death, or after the next process came, by which a role is free again, with all defaults.
NOTICED_S = 7.0


@pytest.fixture
def journal_client(own_server):
    with own_server.client(JOURNAL_DB, decode_responses=True) as client:
        yield client


@pytest.fixture
def play(own_server, tmp_path, journal_client):
    """Start a process in a role, and return a function that kills it."""
    started = []

    def start(role):
        with (tmp_path / f"{role}.log").open("ab") as log:
            process = fork_server().start(["tests.integration.lost.role_process", role, own_server.url()], os.environ, log)
        started.append(process)

        def kill():
            wait_until(lambda: journal_client.sismember(PLAYED, role), 20, (tmp_path / f"{role}.log").read_text)
            process.kill()
            process.wait()

        return kill

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()


AROUND, ALONE = "another process around", "alone"


@pytest.fixture(params=[AROUND, ALONE])
def around(request, crew, client):
    """Have another process consume something else, or none."""
    if request.param == ALONE:
        return False
    crew.start("another", queue="other")
    crew.wait()
    wait_until(lambda: client.hlen("processes:{presence}") == 2)
    return True


@pytest.fixture
def next_process(connect, own_server):
    """Connect as the next one: this process has neither consumed nor waited before."""
    return lambda: connect(own_server.url(), publish_timeout=60)


def takeovers():
    """Return who else is there, whether the next consumer is exclusive, and what the dead one was.

    Those in which an odd number of the three holds are weekly: the others have any two of them together.
    """
    found = []
    for others, exclusive, role in itertools.product((AROUND, ALONE), (False, True), ("consumer", "exclusive")):
        odd = (others == AROUND) ^ exclusive ^ (role == "exclusive")
        found.append(pytest.param(others, exclusive, role, marks=pytest.mark.weekly if odd else ()))
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize(("around", "exclusive", "role"), takeovers(), indirect=["around"])
def test_a_consumer_takes_over(role, exclusive, around, play, next_process):
    channel = next_process().channel()
    declare(channel, "q")
    publish(channel, "q", "held")
    play(role)()
    killed_at = machine_time()
    got = []
    channel.basic_consume("q", callback=got.append, exclusive=exclusive)
    wait_until(lambda: drain(channel) or got)
    assert machine_time() - killed_at < NOTICED_S
    assert [(message.payload, message.delivery_info["redelivered"]) for message in got] == [("held", True)]


def test_a_consumer_takes_over_from_processes_that_died_together(play, next_process, client):
    """One of them led: the next process does not wait for longer than its lease."""
    channel = next_process().channel()
    declare(channel, "q")
    publish(channel, "q", "held")
    kills = [play("owner"), play("consumer")]
    wait_until(lambda: client.zcard("heartbeats:{presence}") == 2)
    for kill in kills:
        kill()
    killed_at = machine_time()
    got = []
    channel.basic_consume("q", callback=got.append)
    wait_until(lambda: drain(channel) or got)
    assert machine_time() - killed_at < NOTICED_S


@pytest.mark.parametrize(("role", "queue"), [("joined alone", "q"), ("joined single", "single")])
def test_a_consumer_takes_over_from_one_that_was_killed_as_it_joined(role, queue, play, next_process):
    play(role)()
    killed_at = machine_time()
    channel = next_process().channel()
    SINGLE(channel).declare()
    declare(channel, "q")
    publish(channel, queue, "waiting")
    got = []
    channel.basic_consume(queue, callback=got.append, exclusive=queue == "q")
    wait_until(lambda: drain(channel) or got, 90)
    assert machine_time() - killed_at < NOTICED_S


@pytest.mark.sample(1)
def test_a_queue_goes_with_its_owner(around, play, next_process, client):
    play("owner")()
    killed_at = machine_time()
    if around:
        wait_until(lambda: not client.exists("meta:{mine}"))
    MINE(next_process().channel()).declare()
    assert machine_time() - killed_at < NOTICED_S


@pytest.mark.sample(1)
def test_publishers_wait_no_longer_for_a_subscriber_and_its_position_stays(around, play, next_process, client):
    publisher = kombu.Producer(next_process(), NEWS)
    publisher.declare()
    kill = play("subscriber")
    wait_until(lambda: client.zcard("subscribers:{/0.news}") == 1)
    publisher.publish("held")
    kill()
    killed_at = machine_time()
    publisher.publish("next")
    assert machine_time() - killed_at < NOTICED_S
    [record] = client.hvals("subscriber:{/0.news}")
    assert " suspect " in record


def test_the_publisher_behind_a_dead_one_gets_the_room(around, play, next_process, client):
    connection = next_process()
    producer = kombu.Producer(connection)
    producer.publish("first", routing_key="full", declare=[FULL])
    kill = play("publisher")
    wait_until(lambda: client.zcard("waiting_publishers:{full}") == 1)
    waiting = threading.Thread(target=producer.publish, args=("behind",), kwargs={"routing_key": "full"})
    waiting.start()
    wait_until(lambda: client.zcard("waiting_publishers:{full}") == 2)
    kill()
    killed_at = machine_time()
    next_process().channel().basic_get("full", no_ack=True)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert machine_time() - killed_at < NOTICED_S


def test_a_consumer_of_a_living_process_is_refused_at_once(connect, own_server, play, journal_client):
    channel = connect(own_server.url()).channel()
    declare(channel, "q")
    publish(channel, "q", "held")
    play("exclusive")
    wait_until(lambda: journal_client.sismember(PLAYED, "exclusive"))
    asked_at = machine_time()
    with pytest.raises(ChannelError):
        channel.basic_consume("q")
    assert machine_time() - asked_at < 1


def drain(channel):
    with suppress(TimeoutError):
        channel.connection.client.drain_events(timeout=0.05)
