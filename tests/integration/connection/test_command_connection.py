"""A held connection: the order of its replies, and what is known after each way of losing it."""

from __future__ import annotations

import os
import threading
import time

import pytest
import redis

from celery_redis_plus.connection import persistent_connection, protocol
from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import ServerTimeout, ServerUnreachable, WrongKeyType
from celery_redis_plus.options import Options
from tests.support.connections import ADD, FAIL, Answers
from tests.support.machine_time import machine_time
from tests.support.waiting import wait_until

# -- replies ----------------------------------------------------------------------------------------------------------------


def test_a_script_is_loaded_at_its_first_call(commands, redis_client):
    assert commands.call(ADD, [b"n"], 2) == 2
    assert redis_client.script_exists(ADD.sha.decode()) == [True]
    assert commands.call(ADD, [b"n"], 3) == 5


def test_posts_are_answered_before_the_next_call_returns_and_in_order(commands):
    answers = Answers()
    for _ in range(10):
        commands.send_nowait(ADD, [b"n"], 1, done=answers)
    assert commands.has_pending
    assert commands.command("GET", "n") == b"10"
    assert answers.replies == list(range(1, 11))
    assert not commands.has_pending


def test_held_posts_go_out_with_the_next_write_or_push(commands, redis_client):
    answers = Answers()
    commands.command("PING")
    commands.send_nowait(ADD, [b"n"], 1, done=answers, buffered=True)
    commands.send_nowait(ADD, [b"n"], 1, done=answers, buffered=True)
    assert redis_client.get("n") is None
    assert commands.command("GET", "n") == b"2"
    commands.send_nowait(ADD, [b"n"], 1, done=answers, buffered=True)
    commands.flush()
    wait_until(lambda: redis_client.get("n") == b"3")
    commands.read_ready()
    wait_until(lambda: (commands.read_ready(), not commands.has_pending)[1])
    assert answers.replies == [1, 2, 3]


def test_held_posts_go_out_before_a_close(open_commands, redis_client):
    commands, answers = open_commands(), Answers()
    commands.send_nowait(ADD, [b"n"], 1, done=answers, buffered=True)
    commands.close()
    assert redis_client.get("n") == b"1"
    assert answers.replies == [1]


def test_an_error_is_raised_where_it_belongs_and_the_connection_goes_on(commands):
    answers = Answers()
    commands.command("SET", "text", "x")
    commands.send_nowait(FAIL, [], done=answers)
    commands.send_nowait(ADD, [b"n"], 1, done=answers)
    with pytest.raises(WrongKeyType, match=r"WRONGTYPE|wrong kind"):
        commands.command("ZCARD", "text")
    assert not commands.outcome_unknown
    assert [str(error) for error in answers.errors] == ["no"] or "no" in str(answers.errors[0])
    assert answers.replies == [1]
    assert commands.command("PING") == b"PONG"
    assert commands.generation == 1


def test_a_pipeline_has_an_error_among_its_replies(commands):
    commands.send_nowait(ADD, [b"n"], 1)
    ok, error, number = commands.pipeline([("SET", "text", "x"), ("ZCARD", "text"), ("GET", "n")])
    assert (ok, number) == (b"OK", b"1")
    assert isinstance(error, WrongKeyType)


def test_asked_commands_answer_through_their_callback(commands):
    answers = Answers()
    commands.command_nowait("SET", "a", 1, done=answers)
    commands.command_nowait("ZCARD", "a", done=answers)
    assert commands.call(ADD, [b"a"], 1) == 2
    assert answers.replies == [b"OK"]
    assert isinstance(answers.errors[0], WrongKeyType)


def test_commands_in_one_write_answer_together(commands):
    answers = []
    commands.send_nowait(ADD, [b"n"], 1, buffered=True)
    commands.commands_nowait([("SET", "a", 1), ("ZCARD", "a"), ("GET", "n")], answers.append)
    assert commands.call(ADD, [b"a"], 1) == 2
    [(ok, error, number)] = answers
    assert (ok, number) == (b"OK", b"1")
    assert isinstance(error, WrongKeyType)


def test_commands_in_one_write_are_lost_together(commands):
    answers = []
    commands.commands_nowait([("GET", "a"), ("GET", "b")], answers.append)
    commands.abort()
    assert [[type(error) for error in errors] for errors in answers] == [[ConnectionError] * 2]


def test_commands_for_a_server_that_is_away_fail_together():
    away, answers = CommandConnection(Connector(Address("127.0.0.1", 1), Options()), "test", timeout=1), []
    with pytest.raises(ServerUnreachable):
        away.commands_nowait([("GET", "a"), ("GET", "b")], answers.append)
    assert [[type(error) for error in errors] for errors in answers] == [[ServerUnreachable] * 2]


@pytest.mark.parametrize("flushes", [1, 3])
def test_scripts_that_the_server_forgot_are_sent_again(commands, redis_client, flushes):
    answers = Answers()
    commands.send_nowait(ADD, [b"n"], 1, done=answers)
    for _ in range(flushes):
        commands.command("PING")
        redis_client.script_flush()
        commands.send_nowait(ADD, [b"n"], 1, done=answers)
        commands.send_nowait(ADD, [b"n"], 1, done=answers, buffered=True)
    wait_until(lambda: (commands.command("PING"), not commands.has_pending)[1])
    assert redis_client.get("n") == b"%d" % (1 + 2 * flushes)
    assert answers.replies == list(range(1, 2 + 2 * flushes))
    redis_client.script_flush()
    assert commands.call(ADD, [b"n"], 1) == 2 + 2 * flushes


def test_threads_share_a_wire(commands):
    def work():
        for _ in range(200):
            commands.call(ADD, [b"n"], 1)
            commands.send_nowait(ADD, [b"m"], 1)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert commands.pipeline([("GET", "n"), ("GET", "m")]) == [b"1000", b"1000"]


def test_large_arguments_and_replies(commands):
    body = os.urandom(5_000_000)
    commands.command("SET", "k", body)
    assert commands.command("GET", "k") == body


# -- loss -------------------------------------------------------------------------------------------------------------------


def test_a_cut_connection_is_an_error_of_ours_and_leaves_doubt(commands, cut):
    commands.call(ADD, [b"n"], 1)
    cut()
    answers = Answers()

    def call():
        for _ in range(3):
            commands.send_nowait(ADD, [b"n"], 1, done=answers)
            commands.command("PING")

    with pytest.raises(ServerUnreachable):
        call()
    assert commands.outcome_unknown
    assert not commands.connected
    assert all(isinstance(error, ServerUnreachable) for error in answers.errors)
    assert answers.errors
    assert commands.command("PING") == b"PONG"
    assert commands.generation == 2


def test_a_refused_connection_leaves_no_doubt(open_commands, start_server):
    server = start_server()
    commands = CommandConnection(Connector(Address.from_url(server.url()), Options()), "tested", timeout=1)
    server.kill()
    with pytest.raises(ServerUnreachable):
        commands.call(ADD, [b"n"], 1)
    assert not commands.outcome_unknown
    answers = Answers()
    with pytest.raises(ServerUnreachable):
        commands.send_nowait(ADD, [b"n"], 1, done=answers)
    assert len(answers.errors) == 1


def test_a_connection_that_died_while_idle_is_replaced_also_where_a_reply_is_unread(commands, cut, monkeypatch):
    monkeypatch.setattr(persistent_connection, "IDLE_CHECK_S", -1.0)
    answers = Answers()
    commands.command("PING")
    commands.send_nowait(ADD, [b"n"], 1, done=answers)
    wait_until(commands._arrived)  # noqa: SLF001 - of the reply
    cut()
    generation = commands.generation
    assert commands.command("GET", "n") == b"1"
    assert (answers.replies, commands.generation) == ([1], generation + 1)


def test_a_connection_that_died_while_idle_is_replaced_without_doubt(commands, cut, monkeypatch):
    failures = []
    commands.on_failure = lambda: failures.append(1)
    commands.call(ADD, [b"n"], 1)
    producer = commands.producer
    cut()
    monkeypatch.setattr(persistent_connection, "IDLE_CHECK_S", -1.0)
    assert wait_until(lambda: commands.call(ADD, [b"n"], 1)) == 2
    assert commands.generation == 2
    assert commands.producer != producer
    assert not failures


def test_a_silent_peer_is_found_by_a_ping_after_the_health_check_interval(open_commands, redis_client, monkeypatch):
    commands = open_commands(timeout=0.2, health_check_interval=0.001)
    commands.command("PING")
    monkeypatch.setattr(persistent_connection, "IDLE_CHECK_S", -1.0)
    redis_client.client_pause(400, all=True)
    time.sleep(0.01)
    # The PING is not answered within the timeout; the new connection's handshake has a longer one.
    assert commands.call(ADD, [b"n"], 1) == 1
    assert commands.generation == 2


def test_a_server_that_does_not_answer_in_time_is_given_up(open_commands, redis_client):
    commands = open_commands(timeout=0.2)
    commands.command("PING")
    failures = []
    commands.on_failure = lambda: failures.append(1)
    redis_client.client_pause(600, all=True)
    start = machine_time()
    with pytest.raises(ServerTimeout):
        commands.call(ADD, [b"n"], 1)
    assert machine_time() - start < 0.5
    assert commands.outcome_unknown
    assert not commands.connected
    assert failures == [1]
    redis_client.client_unpause()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_between_write_and_read_drops_the_connection(commands, interrupt, monkeypatch):
    """A task's time limit, gevent.Timeout: a reply that comes later must not be taken for the next command's."""
    commands.command("SET", "a", 1)

    def be_interrupted(*args, **kwargs):
        raise interrupt

    monkeypatch.setattr(commands, "_read", be_interrupted)
    with pytest.raises(interrupt):
        commands.command("GET", "a")
    assert not commands.connected
    assert commands.outcome_unknown
    assert commands.command("INCR", "a") == 2


@pytest.fixture(params=["hiredis", "python"])
def parsed_commands(request, open_commands):
    """A wire whose replies hiredis parses, or redis-py's own parser."""
    commands = open_commands()
    if request.param == "hiredis":
        pytest.importorskip("hiredis")
        return commands
    from redis._parsers import _RESP2Parser

    def plain(purpose, **options):
        connection = Connector.open(commands.connector, purpose, **options)
        connection._parser = parser = _RESP2Parser(65_536)  # noqa: SLF001 - redis-py has no public way
        parser.on_connect(connection)
        return connection

    commands.connector.open = plain
    return commands


def test_replies_of_every_kind_and_size_are_read(parsed_commands):
    commands = parsed_commands
    for size in (0, 1, 65_000, 65_536, 200_000, 5_000_000):
        commands.command("SET", "a", b"\r\n" * (size // 2))
        assert commands.command("GET", "a") == b"\r\n" * (size // 2)
    assert commands.command("GET", "none") is None
    assert commands.command("STRLEN", "a") == 5_000_000
    assert commands.command("EVAL", "return {1, {'b', {}}, false}", 0) == [1, [b"b", []], None]
    assert commands.command("SET", "a", 1) == b"OK"
    with pytest.raises(redis.ResponseError, match="unknown command"):
        commands.command("NOSUCH")
    replies = commands.pipeline([("GET", "a"), ("NOSUCH",), ("INCR", "a"), ("ECHO", b"x" * 100_000)])
    assert (replies[0], replies[2:]) == (b"1", [2, b"x" * 100_000])
    assert isinstance(replies[1], redis.ResponseError)
    assert commands.generation == 1


def test_a_lost_connection_is_told_whichever_parser_reads(parsed_commands, cut):
    parsed_commands.command("PING")
    cut()
    with pytest.raises(ServerUnreachable):
        parsed_commands.command("PING")
    assert parsed_commands.command("PING") == b"PONG"


def test_a_reset_connection_is_told_and_not_replaced_by_the_parser(open_commands, proxy):
    """The parser in Python closes a connection that fails in `can_read`, and redis-py opens another one at the next command."""
    commands = open_commands(port=proxy.port)
    number = commands.next_number()
    proxy.reset()
    with pytest.raises(ServerUnreachable):
        wait_until(commands.read_ready, 5, "the reset")
    assert not commands.connected
    assert commands.next_number()[0] != number[0]
    assert commands.generation == 2


@pytest.mark.parametrize(
    "error", [AttributeError("'NoneType' object has no attribute 'readline'"), ValueError("I/O on closed file")]
)
@pytest.mark.parametrize("where", ["read_response", "send_packed_command"])
def test_what_a_parser_raises_over_a_closed_socket_is_a_lost_connection(where, error, open_commands, monkeypatch):
    monkeypatch.setattr(protocol, "_quick", lambda sock, reader, buffer, slow: slow)
    commands = open_commands()
    commands.connect()

    def fail(*args, **kwargs):
        raise error

    owner = commands.connection if where == "send_packed_command" else commands.connection._parser  # noqa: SLF001
    monkeypatch.setattr(owner, where, fail)
    with pytest.raises(ServerUnreachable, match="socket"):
        commands.command("PING")
    assert not commands.connected
    assert commands.command("PING") == b"PONG"


def test_an_argument_that_cannot_be_packed_leaves_no_reply_behind(commands):
    commands.command("SET", "a", 1)
    with pytest.raises(UnicodeEncodeError):
        commands.command("SET", "a", "\ud800")
    assert commands.command("GET", "a") == b"1"


def test_abandoning_reads_nothing_and_tells_all_who_wait(commands):
    answers = Answers()
    commands.send_nowait(ADD, [b"n"], 1, done=answers)
    commands.send_nowait(ADD, [b"n"], 1, done=answers, buffered=True)
    commands.abort()
    assert (len(answers.errors), answers.replies) == (2, [])
    assert not commands.has_pending
    commands.abort()


def test_closing_twice_and_closing_what_was_never_open_is_fine(open_commands):
    commands = open_commands()
    commands.close()
    commands.connect()
    commands.close()
    commands.close()
    with pytest.raises(ServerUnreachable, match="tested: this process has no connection"):
        commands.fileno()


def test_numbers_of_a_connection_start_anew_with_the_connection(commands):
    first = [commands.next_number() for _ in range(3)]
    commands.abort()
    second = commands.next_number()
    assert [number for _, number in first] == [1, 2, 3]
    assert len({producer for producer, _ in first}) == 1
    assert second[1] == 1
    assert second[0] != first[0][0]


def test_owed_replies_are_read_until_it_is_enough(commands):
    answers = Answers()
    for _ in range(5):
        commands.send_nowait(ADD, [b"n"], 1, done=answers)
    commands.read_until(until=lambda: len(answers.replies) == 2)
    assert answers.replies == [1, 2]
    commands.read_until()
    assert answers.replies == [1, 2, 3, 4, 5]
