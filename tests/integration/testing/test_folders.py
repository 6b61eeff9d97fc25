"""Values with spaces in the configuration of the embedded server."""

from __future__ import annotations

import tempfile

import kombu

from celery_redis_plus.testing import EmbeddedServer
from tests.support.inbox import declare


def test_a_server_starts_in_a_folder_with_a_space(tmp_path, monkeypatch):
    folder = tmp_path / "with a space"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with EmbeddedServer() as server, server.client() as client:
        assert client.config_get("dir")["dir"].startswith(str(folder))


def test_a_value_with_a_space_is_one_word():
    with EmbeddedServer(config={"requirepass": ("two words:@/%",)}) as server:
        with server.client() as client:
            assert client.config_get("requirepass")["requirepass"] == "two words:@/%"
        with kombu.Connection(server.url()) as connection:
            declare(connection.default_channel, "q")
