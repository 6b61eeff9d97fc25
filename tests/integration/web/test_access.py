"""Who may use the web page."""

from __future__ import annotations

import itertools
import re
import time
from urllib.parse import urlencode

import pytest

from celery_redis_plus.cli.web import sessions
from celery_redis_plus.cli.web.access import TOKEN_USER
from tests.support.inbox import declare
from tests.support.web_page import TOKEN, web_page

PAGES = ["/", "/queue?name=q", "/message?queue=q&id=1", "/scheduled", "/dead-letters", "/consumers", "/search?q=1", "/nonesuch"]
ACTIONS = [
    "/queue/pause?name=q", "/queue/resume?name=q", "/dead-letters/replay?queue=q", "/dead-letters/delete?queue=q", "/logout",
    "/dead-letters/replay-many?queue=q", "/dead-letters/delete-many?queue=q", "/queue/move?name=q", "/queue/cancel?name=q",
    "/stop?page=/queue&queue=q",
]  # fmt: skip


def test_a_page_without_a_login_is_refused_and_says_nothing_of_the_broker(page, channel):
    declare(channel, "secret-queue")
    cookies = [None, f"{page.access.cookie}=wrong", "ü=1; =", f"other={page.cookie.partition('=')[2]}", f"{page.access.cookie}=ü"]
    for path, cookie in itertools.product(PAGES, cookies):
        answer = page.ask("GET", path, **({} if cookie is None else {"Cookie": cookie}))
        assert answer.status == 401
        assert "secret-queue" not in answer.text
        assert "the tests" not in answer.text
        assert "Log in" in answer.text


@pytest.mark.parametrize(
    "host", ["localhost/static/?", "localhost/login?x=", "localhost/login#", "localhost\\\\login", "a@localhost"]
)
def test_a_host_header_with_a_path_opens_nothing(page, host):
    answer = page.ask("GET", "/", Host=host)
    assert answer.status == 400
    assert "the tests" not in answer.text


def test_the_login_url_gives_a_cookie_that_no_script_and_no_other_site_gets(page):
    answer = page.ask("GET", f"/login?token={TOKEN}")
    assert answer.status == 200
    # The token leaves the address bar at once.
    assert 'content="0; url=/"' in answer.text
    assert TOKEN not in answer.text
    (cookie,) = answer.headers.get_all("Set-Cookie")
    value, *flags = cookie.split("; ")
    assert {flag.lower() for flag in flags} == {"httponly", "samesite=strict", "path=/", "max-age=43200"}
    assert TOKEN not in value
    assert page.ask("GET", "/", Cookie=value).status == 200


def test_behind_a_proxy_with_tls_the_cookie_is_secure(page):
    for answer in (
        page.ask("GET", f"/login?token={TOKEN}", scheme="https"),
        page.ask("GET", f"/login?token={TOKEN}", X_Forwarded_Proto="https"),
        page.ask("GET", f"/login?token={TOKEN}", X_Forwarded_Proto="HTTPS, http"),
    ):
        assert "secure" in answer.headers["Set-Cookie"].lower().split("; ")
    answer = page.ask("GET", f"/login?token={TOKEN}", X_Forwarded_Proto="http")
    assert "secure" not in answer.headers["Set-Cookie"].lower().split("; ")


@pytest.mark.parametrize("token", ["wrong", "", TOKEN[:-1], TOKEN + "x", "%ff", "ü"])
def test_a_wrong_token_gives_no_cookie(page, token):
    for answer in (
        page.ask("GET", "/login?" + urlencode({"token": token})),
        page.ask("POST", "/login", urlencode({"token": token}), Origin=f"http://{page.host}"),
    ):
        assert answer.status == 401
        assert "Set-Cookie" not in answer.headers


def test_the_form_of_the_login_takes_the_token(page):
    answer = page.ask("POST", "/login", urlencode({"token": TOKEN}), Origin=f"http://{page.host}")
    assert answer.status == 200
    assert page.ask("GET", "/", Cookie=answer.headers["Set-Cookie"].partition(";")[0]).status == 200


@pytest.mark.parametrize("read_only", [False, True])
def test_a_logout_ends_the_session_and_no_other(broker_url, read_only):
    with web_page(broker_url, read_only=read_only) as page:
        other = page.ask("GET", f"/login?token={TOKEN}").headers["Set-Cookie"].partition(";")[0]
        assert 'action="/logout"' in page.get("/").text
        assert "Max-Age=0" in page.post("/logout").headers["Set-Cookie"]
        assert page.get("/").status == 401
        assert page.ask("GET", "/", Cookie=other).status == 200


def test_a_session_ends_after_twelve_hours(page, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(sessions.time, "monotonic", lambda: now + 12 * 3600 - 60)
    assert page.get("/").status == 200
    monkeypatch.setattr(sessions.time, "monotonic", lambda: now + 12 * 3600 + 60)
    assert page.get("/").status == 401


def test_of_a_thousand_logins_the_oldest_ends(page):
    page.get("/")
    for _ in range(sessions.MAX_SESSIONS - 1):
        page.access.sessions.open(TOKEN_USER)
    assert page.get("/").status == 200
    page.access.sessions.open(TOKEN_USER)
    assert page.get("/").status == 401


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "https://127.0.0.1:1", "//", "[", "http://[", "http://"])
def test_a_form_of_another_site_is_refused(page, origin):
    body = urlencode({"form_token": page.access.form_token, "tag": "1", "reason": "x"})
    for path in (*ACTIONS, "/login"):
        answer = page.ask("POST", path, body, Cookie=page.cookie, **({} if origin is None else {"Origin": origin}))
        assert answer.status == 403
        assert "not sent from a page of this server" in answer.text


@pytest.mark.parametrize("token", [None, "", "wrong", "ü"])
def test_a_form_without_its_token_is_refused(page, token):
    body = urlencode({"tag": "1", "reason": "x"} | ({} if token is None else {"form_token": token}))
    for path in ACTIONS:
        assert page.ask("POST", path, body, Cookie=page.cookie, Origin=f"http://{page.host}").status == 403


def test_a_form_without_a_login_is_refused(page):
    body = urlencode({"form_token": page.access.form_token, "tag": "1", "reason": "x"})
    for path in ACTIONS:
        assert page.ask("POST", path, body, Origin=f"http://{page.host}").status == 401


def test_an_action_is_no_get(page):
    assert {page.get(path).status for path in ACTIONS} == {405}


def test_a_form_that_is_too_long_or_no_form_is_refused(page):
    for body, status in (("x" * 200_000, 413), ("ü" * 9, 400)):
        answer = page.ask("POST", "/dead-letters/delete?queue=q", body, Cookie=page.cookie, Origin=f"http://{page.host}")
        assert answer.status == status


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80", "[", "a b"])
def test_a_host_that_is_not_ours_is_refused_with_every_address(page, host):
    for path in ("/", f"/login?token={TOKEN}", "/static/page.css"):
        answer = page.ask("GET", path, Host=host, Cookie=page.cookie)
        assert (answer.status, "Set-Cookie" in answer.headers) == (400, False)


def test_addresses_localhost_and_allowed_names_are_hosts(broker_url):
    with web_page(broker_url, hosts=("queues.example",)) as page:
        for host in ("127.0.0.1", "localhost:9809", "[::1]:9809", "192.168.1.5", "queues.example", "Queues.Example:443"):
            assert page.ask("GET", "/", Host=host, Cookie=page.cookie).status == 200


def test_every_answer_has_a_policy_that_runs_only_our_script(page):
    for path in ("/", "/login", "/static/page.js", "/nonesuch"):
        headers = page.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


def test_pages_have_nothing_inline_and_nothing_from_elsewhere(page, dead):
    dead("q", "x")
    for path in ("/", "/queue?name=q", "/dead-letters?queue=q", "/search?q=x"):
        text = page.get(path).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script>", text)
        assert not re.search(r"""(?:src|href|action)=["'](?:https?:)?//""", text)


def test_read_only_shows_no_forms_and_refuses_all(broker_url, dead):
    (tag,) = dead("q", "x")
    with web_page(broker_url, read_only=True) as page:
        for path in ("/", "/queue?name=q", "/dead-letters?queue=q", f"/message?queue=q&id={tag}", "/scheduled"):
            answer = page.get(path)
            assert answer.status == 200
            assert "read-only" in answer.text
            assert re.findall(r'method="post" action="([^"]*)"', answer.text) == ["/logout"]
            assert answer.text.count('method="post"') == 1
            assert 'type="checkbox"' not in answer.text
        for path in set(ACTIONS) - {"/logout"}:
            answer = page.ask(
                "POST", path, urlencode({"form_token": page.access.form_token, "tag": tag, "reason": "x"}), Cookie=page.cookie,
                Origin=f"http://{page.host}",
            )  # fmt: skip
            assert answer.status == 403
            assert "--read-only" in answer.text
        assert "1 in all" in page.get("/dead-letters?queue=q").text
