"""`celery-redis-plus web` as users start it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, build_opener

from celery_redis_plus.cli.main import main
from tests.support.inbox import declare


def test_the_printed_url_logs_in_and_ctrl_c_ends_the_server_in_silence(broker_url, channel):
    declare(channel, "a-queue")
    command = [sys.executable, "-m", "celery_redis_plus", "--broker", broker_url, "web", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = re.search(r"http://127\.0\.0\.1:\d+/login\?token=\S{20,}", process.stderr.readline())[0]
            user = build_opener(HTTPCookieProcessor())
            assert b"You are logged in" in user.open(url, timeout=30).read()
            text = user.open(url.partition("/login")[0], timeout=30).read().decode()
            assert "a-queue" in text
            assert urlsplit(broker_url).netloc in text
            # A client that stays does not hold up the end.
            left = HTTPConnection(urlsplit(url).netloc, timeout=30)
            left.request("GET", "/login")
            left.getresponse().read()
        finally:
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
        left.close()
        assert (process.wait(30), said) == (0, "")


def run(capsys, *arguments):
    status = main(["web", *arguments])
    return status, capsys.readouterr().err


def test_a_token_that_could_be_guessed_is_refused(capsys, monkeypatch):
    status, said = run(capsys, "--token", "short")
    assert (status, "5 characters; allowed are 16 or more" in said) == (2, True)
    monkeypatch.setitem(os.environ, "CELERY_REDIS_PLUS_WEB_TOKEN", "short")
    assert run(capsys)[0] == 2


def test_a_port_that_is_taken_or_a_host_that_is_another_s_is_said(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        status, said = run(capsys, "--port", port)
    assert (status, f"--port {port}: Address already in use" in said) == (2, True)
    assert run(capsys, "--host", "192.0.2.1")[0] == 2
    assert run(capsys, "--port", "70000")[0] == 2


def test_without_starlette_the_packages_are_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "celery_redis_plus.cli.web.server", None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    status, said = run(capsys)
    assert status == 1
    assert "'uvicorn" in said
