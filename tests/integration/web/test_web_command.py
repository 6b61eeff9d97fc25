"""`celery-redis-plus web` as users start it."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, build_opener

import uvicorn

from celery_redis_plus.cli.main import main
from celery_redis_plus.cli.web import access, bounded_connections
from celery_redis_plus.cli.web.server import SETTINGS, listen
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


@contextmanager
def served(broker_url, token, **more):
    """Start the server with a token of ours; give its process and its first line."""
    command = [sys.executable, "-m", "celery_redis_plus", "--broker", broker_url, "web", "--port", "0"]
    environment = {**os.environ, "CELERY_REDIS_PLUS_WEB_TOKEN": token}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, **more) as process:
        try:
            yield process, process.stderr.readline()
        finally:
            process.send_signal(signal.SIGINT)


def test_a_token_of_the_user_is_not_printed(broker_url):
    with served(broker_url, "a-configured-secret-0123456789") as (process, line):
        assert re.search(r"http://127\.0\.0\.1:\d+/login, and log in with your token", line)
        process.send_signal(signal.SIGINT)
        assert "a-configured-secret" not in line + process.stderr.read()


def test_actions_and_failed_logins_are_lines_on_stderr_without_the_token(broker_url, channel):
    declare(channel, "ledger")
    token = "a-configured-secret-0123456789"
    with served(broker_url, token) as (process, line):
        address = re.search(r"127\.0\.0\.1:\d+", line)[0]

        def ask(method, path, body=None, **headers):
            connection = HTTPConnection(address, timeout=30)
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            found = answer.status, answer.headers, answer.read().decode()
            connection.close()
            return found

        assert ask("GET", "/login?token=guessed-wrong")[0] == 401
        cookie = ask("GET", f"/login?token={token}")[1]["Set-Cookie"].partition(";")[0]
        form_token = re.search(r'form_token" value="([^"]+)', ask("GET", "/", Cookie=cookie)[2])[1]
        form = urlencode({"form_token": form_token, "reason": "tests", "for": ""})
        assert ask("POST", "/queue/pause?name=ledger", form, Cookie=cookie, Origin=f"http://{address}")[0] == 303
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert "WARNING a login with a wrong token, from 127.0.0.1\n" in said
    assert "INFO audit: pause in queue 'ledger': 1 changed, reason tests, by web (web, 127.0.0.1)\n" in said
    assert "guessed" not in said
    assert token not in said


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def test_half_sent_requests_stop_nobody_and_fill_no_log(broker_url):
    with served(broker_url, "a-token-of-the-tests", preexec_fn=few_files) as (process, line), ExitStack() as held:
        address = ("127.0.0.1", int(re.search(r":(\d+)/login", line)[1]))
        for _ in range(300):
            client = held.enter_context(socket.create_connection(address, timeout=30))
            client.sendall(b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        for _ in range(3):
            good = HTTPConnection(*address, timeout=30)
            good.request("GET", "/login")
            assert good.getresponse().status == 401
            good.close()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""


def test_a_request_that_does_not_end_is_given_up(page, monkeypatch):
    monkeypatch.setattr(bounded_connections, "EXCHANGE_S", 0.5)
    with serving(page) as address:
        for sent in (b"", b"GET /login HTTP/1.1\r\nX: ", b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\n"):
            with socket.create_connection(address, timeout=30) as client:
                client.sendall(sent)
                while received(client):
                    pass


def test_a_form_that_does_not_end_is_refused(page, monkeypatch):
    monkeypatch.setattr(access, "FORM_S", 0.2)
    with serving(page) as address, socket.create_connection(address, timeout=30) as client:
        head = f"POST /login HTTP/1.1\r\nHost: {page.host}\r\nOrigin: http://{page.host}\r\nContent-Length: 9\r\n\r\ntok"
        client.sendall(head.encode())
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")


def received(client):
    try:
        return client.recv(4096)
    except ConnectionResetError:
        return b""


@contextmanager
def serving(page):
    """Serve the page's application behind a real port of this process, as the command does; give the address."""
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(page.app, **SETTINGS))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


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
