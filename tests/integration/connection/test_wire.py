"""A held connection: the order of its replies, and what is known after each way of losing it."""

from __future__ import annotations

import os
import threading
import time

import pytest
import redis

from celery_redis_plus.connection import persistent_connection, reply_parser
from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import ServerTimeout, ServerUnreachable, WrongKeyType
from celery_redis_plus.options import Options
from tests.support.waiting import wait_until
from tests.support.wires import ADD, FAIL, Answers

# -- replies ----------------------------------------------------------------------------------------------------------------


def test_a_script_is_loaded_at_its_first_call(wire, redis_client):
    assert wire.run(ADD, [b"n"], 2) == 2
    assert redis_client.script_exists(ADD.sha.decode()) == [True]
    assert wire.run(ADD, [b"n"], 3) == 5


def test_posts_are_answered_before_the_next_call_returns_and_in_order(wire):
    answers = Answers()
    for _ in range(10):
        wire.post(ADD, [b"n"], 1, done=answers)
    assert wire.owes
    assert wire.command("GET", "n") == b"10"
    assert answers.replies == list(range(1, 11))
    assert not wire.owes


def test_held_posts_go_out_with_the_next_write_or_push(wire, redis_client):
    answers = Answers()
    wire.command("PING")
    wire.post(ADD, [b"n"], 1, done=answers, hold=True)
    wire.post(ADD, [b"n"], 1, done=answers, hold=True)
    assert redis_client.get("n") is None
    assert wire.command("GET", "n") == b"2"
    wire.post(ADD, [b"n"], 1, done=answers, hold=True)
    wire.push()
    wait_until(lambda: redis_client.get("n") == b"3")
    wire.collect()
    wait_until(lambda: (wire.collect(), not wire.owes)[1])
    assert answers.replies == [1, 2, 3]


def test_held_posts_go_out_before_a_close(open_wire, redis_client):
    wire, answers = open_wire(), Answers()
    wire.post(ADD, [b"n"], 1, done=answers, hold=True)
    wire.close()
    assert redis_client.get("n") == b"1"
    assert answers.replies == [1]


def test_an_error_is_raised_where_it_belongs_and_the_connection_goes_on(wire):
    answers = Answers()
    wire.command("SET", "text", "x")
    wire.post(FAIL, [], done=answers)
    wire.post(ADD, [b"n"], 1, done=answers)
    with pytest.raises(WrongKeyType, match=r"WRONGTYPE|wrong kind"):
        wire.command("ZCARD", "text")
    assert not wire.in_doubt
    assert [str(error) for error in answers.errors] == ["no"] or "no" in str(answers.errors[0])
    assert answers.replies == [1]
    assert wire.command("PING") == b"PONG"
    assert wire.generation == 1


def test_a_pipeline_has_an_error_among_its_replies(wire):
    wire.post(ADD, [b"n"], 1)
    ok, error, number = wire.pipeline([("SET", "text", "x"), ("ZCARD", "text"), ("GET", "n")])
    assert (ok, number) == (b"OK", b"1")
    assert isinstance(error, WrongKeyType)


def test_asked_commands_answer_through_their_callback(wire):
    answers = Answers()
    wire.ask("SET", "a", 1, done=answers)
    wire.ask("ZCARD", "a", done=answers)
    assert wire.run(ADD, [b"a"], 1) == 2
    assert answers.replies == [b"OK"]
    assert isinstance(answers.errors[0], WrongKeyType)


@pytest.mark.parametrize("flushes", [1, 3])
def test_scripts_that_the_server_forgot_are_sent_again(wire, redis_client, flushes):
    answers = Answers()
    wire.post(ADD, [b"n"], 1, done=answers)
    for _ in range(flushes):
        wire.command("PING")
        redis_client.script_flush()
        wire.post(ADD, [b"n"], 1, done=answers)
        wire.post(ADD, [b"n"], 1, done=answers, hold=True)
    wait_until(lambda: (wire.command("PING"), not wire.owes)[1])
    assert redis_client.get("n") == b"%d" % (1 + 2 * flushes)
    assert answers.replies == list(range(1, 2 + 2 * flushes))
    redis_client.script_flush()
    assert wire.run(ADD, [b"n"], 1) == 2 + 2 * flushes


def test_threads_share_a_wire(wire):
    def work():
        for _ in range(200):
            wire.run(ADD, [b"n"], 1)
            wire.post(ADD, [b"m"], 1)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wire.pipeline([("GET", "n"), ("GET", "m")]) == [b"1000", b"1000"]


def test_large_arguments_and_replies(wire):
    body = os.urandom(5_000_000)
    wire.command("SET", "k", body)
    assert wire.command("GET", "k") == body


# -- loss -------------------------------------------------------------------------------------------------------------------


def test_a_cut_connection_is_an_error_of_ours_and_leaves_doubt(wire, cut):
    wire.run(ADD, [b"n"], 1)
    cut()
    answers = Answers()

    def call():
        for _ in range(3):
            wire.post(ADD, [b"n"], 1, done=answers)
            wire.command("PING")

    with pytest.raises(ServerUnreachable):
        call()
    assert wire.in_doubt
    assert not wire.connected
    assert all(isinstance(error, ServerUnreachable) for error in answers.errors)
    assert answers.errors
    assert wire.command("PING") == b"PONG"
    assert wire.generation == 2


def test_a_refused_connection_leaves_no_doubt(open_wire, start_server):
    server = start_server()
    wire = CommandConnection(Connector(Address.from_url(server.url()), Options()), "tested", timeout=1)
    server.kill()
    with pytest.raises(ServerUnreachable):
        wire.run(ADD, [b"n"], 1)
    assert not wire.in_doubt
    answers = Answers()
    with pytest.raises(ServerUnreachable):
        wire.post(ADD, [b"n"], 1, done=answers)
    assert len(answers.errors) == 1


def test_a_connection_that_died_while_idle_is_replaced_without_doubt(wire, cut, monkeypatch):
    failures = []
    wire.on_failure = lambda: failures.append(1)
    wire.run(ADD, [b"n"], 1)
    producer = wire.producer
    cut()
    monkeypatch.setattr(persistent_connection, "IDLE_CHECK_S", -1.0)
    assert wait_until(lambda: wire.run(ADD, [b"n"], 1)) == 2
    assert wire.generation == 2
    assert wire.producer != producer
    assert not failures


def test_a_silent_peer_is_found_by_a_ping_after_the_health_check_interval(open_wire, redis_client, monkeypatch):
    wire = open_wire(timeout=0.2, health_check_interval=0.001)
    wire.command("PING")
    monkeypatch.setattr(persistent_connection, "IDLE_CHECK_S", -1.0)
    redis_client.client_pause(400, all=True)
    time.sleep(0.01)
    # The PING is not answered within the timeout; the new connection's handshake has a longer one.
    assert wire.run(ADD, [b"n"], 1) == 1
    assert wire.generation == 2


def test_a_server_that_does_not_answer_in_time_is_given_up(open_wire, redis_client):
    wire = open_wire(timeout=0.2)
    wire.command("PING")
    failures = []
    wire.on_failure = lambda: failures.append(1)
    redis_client.client_pause(600, all=True)
    start = time.monotonic()
    with pytest.raises(ServerTimeout):
        wire.run(ADD, [b"n"], 1)
    assert time.monotonic() - start < 0.5
    assert wire.in_doubt
    assert not wire.connected
    assert failures == [1]
    redis_client.client_unpause()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_between_write_and_read_drops_the_connection(wire, interrupt, monkeypatch):
    """A task's time limit, gevent.Timeout: a reply that comes later must not be taken for the next command's."""
    wire.command("SET", "a", 1)

    def be_interrupted(*args, **kwargs):
        raise interrupt

    monkeypatch.setattr(wire, "_read", be_interrupted)
    with pytest.raises(interrupt):
        wire.command("GET", "a")
    assert not wire.connected
    assert wire.in_doubt
    assert wire.command("INCR", "a") == 2


@pytest.fixture(params=["hiredis", "python"])
def parsed_wire(request, open_wire):
    """A wire whose replies hiredis parses, or redis-py's own parser."""
    wire = open_wire()
    if request.param == "hiredis":
        pytest.importorskip("hiredis")
        return wire
    from redis._parsers import _RESP2Parser

    def plain(purpose, **options):
        connection = Connector.open(wire.connector, purpose, **options)
        connection._parser = parser = _RESP2Parser(65_536)  # noqa: SLF001 - redis-py has no public way
        parser.on_connect(connection)
        return connection

    wire.connector.open = plain
    return wire


def test_replies_of_every_kind_and_size_are_read(parsed_wire):
    wire = parsed_wire
    for size in (0, 1, 65_000, 65_536, 200_000, 5_000_000):
        wire.command("SET", "a", b"\r\n" * (size // 2))
        assert wire.command("GET", "a") == b"\r\n" * (size // 2)
    assert wire.command("GET", "none") is None
    assert wire.command("STRLEN", "a") == 5_000_000
    assert wire.command("EVAL", "return {1, {'b', {}}, false}", 0) == [1, [b"b", []], None]
    assert wire.command("SET", "a", 1) == b"OK"
    with pytest.raises(redis.ResponseError, match="unknown command"):
        wire.command("NOSUCH")
    reply_parser = wire.pipeline([("GET", "a"), ("NOSUCH",), ("INCR", "a"), ("ECHO", b"x" * 100_000)])
    assert (reply_parser[0], reply_parser[2:]) == (b"1", [2, b"x" * 100_000])
    assert isinstance(reply_parser[1], redis.ResponseError)
    assert wire.generation == 1


def test_a_lost_connection_is_told_whichever_parser_reads(parsed_wire, cut):
    parsed_wire.command("PING")
    cut()
    with pytest.raises(ServerUnreachable):
        parsed_wire.command("PING")
    assert parsed_wire.command("PING") == b"PONG"


def test_a_reset_connection_is_told_and_not_replaced_by_the_parser(open_wire, proxy):
    """The parser in Python closes a connection that fails in `can_read`, and redis-py opens another one at the next command."""
    wire = open_wire(port=proxy.port)
    number = wire.next_number()
    proxy.reset()
    with pytest.raises(ServerUnreachable):
        wait_until(wire.collect, 5, "the reset")
    assert not wire.connected
    assert wire.next_number()[0] != number[0]
    assert wire.generation == 2


@pytest.mark.parametrize(
    "error", [AttributeError("'NoneType' object has no attribute 'readline'"), ValueError("I/O on closed file")]
)
@pytest.mark.parametrize("where", ["read_response", "send_packed_command"])
def test_what_a_parser_raises_over_a_closed_socket_is_a_lost_connection(where, error, open_wire, monkeypatch):
    monkeypatch.setattr(reply_parser, "_quick", lambda sock, reader, buffer, slow: slow)
    wire = open_wire()
    wire.connect()

    def fail(*args, **kwargs):
        raise error

    owner = wire.connection if where == "send_packed_command" else wire.connection._parser  # noqa: SLF001
    monkeypatch.setattr(owner, where, fail)
    with pytest.raises(ServerUnreachable, match="socket"):
        wire.command("PING")
    assert not wire.connected
    assert wire.command("PING") == b"PONG"


def test_an_argument_that_cannot_be_packed_leaves_no_reply_behind(wire):
    wire.command("SET", "a", 1)
    with pytest.raises(UnicodeEncodeError):
        wire.command("SET", "a", "\ud800")
    assert wire.command("GET", "a") == b"1"


def test_abandoning_reads_nothing_and_tells_all_who_wait(wire):
    answers = Answers()
    wire.post(ADD, [b"n"], 1, done=answers)
    wire.post(ADD, [b"n"], 1, done=answers, hold=True)
    wire.abandon()
    assert (len(answers.errors), answers.replies) == (2, [])
    assert not wire.owes
    wire.abandon()


def test_closing_twice_and_closing_what_was_never_open_is_fine(open_wire):
    wire = open_wire()
    wire.close()
    wire.connect()
    wire.close()
    wire.close()
    with pytest.raises(ServerUnreachable, match="tested: this process has no connection"):
        wire.fileno()


def test_numbers_of_a_connection_start_anew_with_the_connection(wire):
    first = [wire.next_number() for _ in range(3)]
    wire.abandon()
    second = wire.next_number()
    assert [number for _, number in first] == [1, 2, 3]
    assert len({producer for producer, _ in first}) == 1
    assert second[1] == 1
    assert second[0] != first[0][0]


def test_owed_replies_are_read_until_it_is_enough(wire):
    answers = Answers()
    for _ in range(5):
        wire.post(ADD, [b"n"], 1, done=answers)
    wire.catch_up(until=lambda: len(answers.replies) == 2)
    assert answers.replies == [1, 2]
    wire.catch_up()
    assert answers.replies == [1, 2, 3, 4, 5]
