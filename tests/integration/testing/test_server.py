import pytest
import redis

from celery_redis_plus.testing.server import EmbeddedServer, ServerStartError
from tests.support.servers import new_server, old_server_program
from tests.support.waiting import wait_until


def test_server_keeps_its_port_and_its_data_over_a_kill(start_server):
    server = start_server({"appendonly": "yes", "appendfsync": "always"})
    port = server.port
    with server.client() as client:
        client.set("key", "value")
        server.kill()
        server.start()

        assert server.port == port
        assert client.get("key") == b"value"


def test_server_without_persistence_forgets_over_a_restart(own_server):
    with own_server.client() as client:
        client.set("key", "value")
        own_server.restart()

        assert client.get("key") is None


def test_frozen_server_answers_again_when_it_thaws(own_server):
    own_server.freeze()
    try:
        with (
            own_server.client(socket_timeout=0.2, retry=None) as client,
            pytest.raises(redis.TimeoutError, match=r"[Tt]imeout"),
        ):
            client.ping()
    finally:
        own_server.thaw()

    with own_server.client() as client:
        assert client.ping()


def test_frozen_server_can_be_stopped(own_server):
    own_server.freeze()
    own_server.stop()

    assert not own_server.running


def test_closing_removes_process_and_directory(start_server):
    server = new_server().start()
    pid, directory = server.pid, server.directory
    server.close()

    assert not server.running
    assert not directory.exists()
    with pytest.raises(RuntimeError, match="not running"):
        server.freeze()
    assert pid > 0


def test_server_with_a_password_has_it_in_its_url(start_server):
    server = start_server({"requirepass": "secret-word"})

    assert server.url(3) == f"redisplus://:secret-word@127.0.0.1:{server.port}/3"
    with server.client() as client:
        assert client.ping()


def test_wrong_configuration_is_told_with_the_server_s_own_words(server):
    with pytest.raises(ServerStartError, match="nonesuch-directive"):
        new_server({"nonesuch-directive": "1"}).start()


def test_missing_program_is_told():
    server = EmbeddedServer(binary="nonesuch-server")

    with pytest.raises(ServerStartError, match="cannot run nonesuch-server"):
        server.start()
    server.close()


def test_two_servers_run_side_by_side(start_server):
    one, other = start_server(), start_server()

    assert one.port != other.port
    with one.client() as client:
        wait_until(client.ping)


def test_any_server_program_can_be_started():
    with EmbeddedServer(binary=old_server_program()) as server, server.client() as client:
        assert client.info()["redis_version"].startswith("6.2.")
