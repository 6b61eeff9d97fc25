"""Addresses of a Redis Cluster: what stands in the URL, and the one slot of all keys."""

import kombu
import pytest

from celery_redis_plus.connection.address import Address, url_options
from celery_redis_plus.connection.cluster_address import one_slot_prefix, slot_of
from celery_redis_plus.connection.cluster_question import ClusterQuestion
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.master_question import Master, NoAnswer
from celery_redis_plus.errors import InvalidAddress
from celery_redis_plus.keys import Keys
from celery_redis_plus.options import Options

URL = "redispluss+cluster://app:se%3Bcret@h1:1;[::1]:2,h3/0?visibility_timeout=9"
LINES = """\
aaa 10.0.0.1:1@11 myself,master - 0 0 4 connected 0-8000
bbb 10.0.0.2:2@12 {} - 0 0 7 connected 8001-16383
"""


def test_hosts_credentials_and_tls_are_read():
    address = Address.from_url(URL)
    assert address.cluster.hosts == (("h1", 1), ("::1", 2), ("h3", 6379))
    assert (address.db, address.username, address.password) == (0, "app", "se;cret")
    assert address.tls is not None
    assert address.display() == "redispluss+cluster://h1:1,[::1]:2,h3:6379/0"
    assert address.at_master("10.0.0.1", 7).display().endswith("/0 (node 10.0.0.1:7)")
    assert url_options(URL) == {"visibility_timeout": "9"}


@pytest.mark.parametrize("url", ["redisplus+cluster:///0", "redisplus+cluster://h1;;h2/0", "amqp+cluster://h1/0"])
def test_what_cannot_be_read_is_refused(url):
    with pytest.raises(InvalidAddress, match=r"redisplus\+cluster"):
        Address.from_url(url)


def test_kombu_shows_the_url_without_its_password_and_keeps_it_in_one_piece():
    with kombu.Connection("redisplus+cluster://app:secret@h1:1;h2:2/0") as connection:
        assert connection.as_uri() == "redisplus+cluster://app:**@h1:1,h2:2/0"
        assert not connection.alt
        assert Address.from_parts(hostname=connection.password).cluster.hosts == (("h1", 1), ("h2", 2))


@pytest.mark.parametrize(
    ("prefix", "tagged"),
    [
        ("", "{celery-redis-plus}"),
        ("shop:", "{shop:}"),
        ("{shop}:", "{shop}:"),
        ("test:{shop}", "test:{shop}"),
        ("{}shop", "{{}shop}"),
        ("a{b", "{a{b}"),
        ("}", "{%7D}"),
    ],
)
def test_every_key_of_a_prefix_is_in_one_slot(prefix, tagged):
    assert one_slot_prefix(prefix) == tagged
    assert one_slot_prefix(tagged) == tagged
    keys = Keys(tagged)
    queue = keys.queue("{orders}")
    named = (keys.queues, keys.exchanges, *keys.processes, *queue.state_keys, *keys.fanout("x", "/0.").everything())
    assert {slot_of(key.decode()) for key in named} == {slot_of(tagged)}


def test_slots_are_those_of_the_specification():
    assert (slot_of("foo"), slot_of("{foo}.bar")) == (12182, 12182)


def test_a_connector_gives_the_prefix_its_tag():
    connector = Connector(Address.from_url("redisplus+cluster://h1/0"), Options(global_keyprefix="shop:"))
    assert connector.options.global_keyprefix == "{shop:}"
    assert connector.address.cluster.slot == slot_of("{shop:}")


class Node:
    """A connection on which a node answers."""

    def __init__(self, slots, nodes):
        self._answers = {"SLOTS": slots, "NODES": nodes}

    def send_command(self, command, question):
        assert command == "CLUSTER"
        self._asked = question

    def read_response(self, **_):
        return self._answers[self._asked]


def ask(slots, flags="master"):
    question = ClusterQuestion(Connector(Address.from_url("redisplus+cluster://seed/0"), Options()).address.cluster)
    return question.read_answer(question.fetch(Node(slots, LINES.format(flags).encode()), "seed"), "seed")


def test_the_owner_is_named_with_its_epoch_and_whom_else_to_ask():
    ranges = [[0, 8000, [b"10.0.0.1", 1, b"aaa"]], [8001, 16383, [b"10.0.0.2", 2, b"bbb", []], [b"10.0.0.3", 3, b"ccc", []]]]
    assert ask(ranges) == Master("10.0.0.2", 2, 7, (("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3)))


@pytest.mark.parametrize("host", [None, b""])
def test_a_node_without_a_name_is_where_it_was_asked(host):
    assert ask([[0, 16383, [host, 6379, b"bbb"]]]).host == "seed"


@pytest.mark.parametrize(
    ("slots", "flags", "why"),
    [
        ([[0, 8000, [b"h", 1, b"aaa"]]], "master", "slot 14749 has no owner"),
        ([[0, 16383, [b"?", 1, b"bbb"]]], "master", "does not know the host name"),
        ([[0, 16383, [b"h", 1, b"bbb"]]], "master,fail?", "does not answer it, and has no successor yet"),
        (b"OK", "master", "cannot be read"),
    ],
)
def test_an_answer_that_names_no_owner_of_use_is_none(slots, flags, why):
    with pytest.raises(NoAnswer, match=why):
        ask(slots, flags)
