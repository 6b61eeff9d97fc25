"""Users and roles of the web page, what a proxy tells, and the prefix of its paths."""

from __future__ import annotations

import logging
from urllib.parse import urlencode

import pytest

from celery_redis_plus.cli.main import main
from celery_redis_plus.cli.web import actions, failed_logins
from celery_redis_plus.cli.web import users as users_module
from celery_redis_plus.cli.web.proxies import Proxies
from celery_redis_plus.cli.web.users import Users, user_line
from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import declare
from tests.support.web_page import TOKEN, web_page

PASSWORD = " long enough "


@pytest.fixture(scope="module", autouse=True)
def cheap_hashes():
    """Hash passwords with a small part of the cost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users_module, "COST", 2**5)
        yield


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    file = tmp_path_factory.mktemp("users") / "users"
    file.write_text("\n".join(["# ours", user_line("ada", "operator", PASSWORD), user_line("bob", "viewer", PASSWORD), ""]))
    return Users.read(file)


def log_in(page, name, password=PASSWORD, **options):
    body = urlencode({"name": name, "token": password})
    return page.ask("POST", "/login", body, Origin=f"http://{page.host}", **options)


def test_an_operator_acts_by_name_and_a_viewer_only_looks(broker_url, channel, users):
    declare(channel, "q")
    with web_page(broker_url, token=None, users=users) as page:
        assert 'name="name"' in page.ask("GET", "/").text
        for name, password in (("ada", "wrong password"), ("eve", PASSWORD), ("", PASSWORD), ("ada", PASSWORD.strip())):
            assert log_in(page, name, password).status == 401
        for name, status in (("ada", 303), ("bob", 403)):
            page.cookie = log_in(page, name).headers["Set-Cookie"].partition(";")[0]
            shown = page.get("/queue", name="q").text
            assert f'<span class="badge">{name}</span>' in shown
            assert ("/queue/pause" in shown) == (name == "ada")
            form = urlencode({"form_token": page.access.form_token, "reason": "tests", "for": ""})
            paused = page.ask("POST", "/queue/pause?name=q", form, Cookie=page.cookie, Origin=f"http://{page.host}")
            assert paused.status == status
        assert "User &#39;bob&#39; is a viewer, and may look only." in paused.text
        assert page.post("/logout").status == 200
        (entry,) = page.admin().audit.entries()
        assert (entry.actor, entry.action) == ("ada", "pause")


def test_after_ten_failed_logins_an_address_waits(broker_url, caplog, monkeypatch):
    caplog.set_level(logging.WARNING, actions.__name__)
    with web_page(broker_url) as page:
        for _ in range(failed_logins.MOST):
            assert page.ask("GET", "/login?token=wrong", peer="10.1.1.1").status == 401
        refused = page.ask("GET", f"/login?token={TOKEN}", peer="10.1.1.1")
        assert (refused.status, "Too many logins have failed" in refused.text) == (429, True)
        assert page.ask("GET", f"/login?token={TOKEN}", peer="10.1.1.2").status == 200
        assert page.get("/").status == 200
        now = failed_logins.time.monotonic()
        monkeypatch.setattr(failed_logins.time, "monotonic", lambda: now + failed_logins.WITHIN_S + 1)
        assert page.ask("GET", f"/login?token={TOKEN}", peer="10.1.1.1").status == 200
    assert len(caplog.records) == failed_logins.MOST


def test_a_trusted_proxy_names_the_user_and_no_other_does(broker_url, channel, users):
    declare(channel, "q")
    proxies = Proxies.parse(["10.0.0.0/8", "::1"], "X-Forwarded-User")
    with web_page(broker_url, token=None, users=users, proxies=proxies) as page:
        named = {"X_Forwarded_User": "ada", "X_Forwarded_For": "192.0.2.7, 203.0.113.9, 10.0.0.2"}
        assert page.ask("GET", "/", peer="192.0.2.1", **named).status == 401
        assert "names no user" in page.ask("GET", "/", peer="10.0.0.1").text
        assert log_in(page, "ada").status == 401
        form = urlencode({"form_token": page.access.form_token, "reason": "tests", "for": ""})
        for name, status in (("ada", 303), ("unknown", 403)):
            headers = {**named, "X_Forwarded_User": name, "Origin": f"http://{page.host}"}
            assert page.ask("POST", "/queue/pause?name=q", form, peer="10.0.0.1", **headers).status == status
        (entry,) = page.admin().audit.entries()
        # What the browser itself has told of its address is not believed.
        assert (entry.actor, entry.origin) == ("ada", "203.0.113.9")
        assert "Log out" not in page.ask("GET", "/", peer="::1", **named).text


def test_pages_have_the_prefix_whether_a_proxy_takes_it_away_or_not(broker_url, channel):
    declare(channel, "q")
    with web_page(broker_url, url_prefix="/celery") as page:
        cookie = page.ask("GET", f"/celery/login?token={TOKEN}").headers["Set-Cookie"]
        assert "path=/celery" in cookie.lower()
        page.cookie = cookie.partition(";")[0]
        for path in ("/celery/", "/celery", "/", "/celery/queue?name=q", "/queue?name=q"):
            shown = page.ask("GET", path, Cookie=page.cookie)
            assert shown.status == 200
            links = [part.partition('"')[0] for part in shown.text.replace("action=", "href=").split('href="')[1:]]
            assert [link for link in links if not link.startswith("/celery/")] == []
        assert page.ask("GET", "/celery/static/page.css").status == 200
        assert page.ask("GET", "/celeryx", Cookie=page.cookie).status == 404
        form = urlencode({"form_token": page.access.form_token, "reason": "tests", "for": ""})
        answer = page.ask("POST", "/celery/queue/pause?name=q", form, Cookie=page.cookie, Origin=f"http://{page.host}")
        assert answer.headers["Location"].startswith("/celery/queue?name=q")


def test_health_needs_no_login_and_tells_of_the_broker(page):
    answer = page.ask("GET", "/healthz")
    assert (answer.status, answer.text) == (200, '{"status":"ok","broker":"unknown"}')
    page.samples.is_away = True
    assert page.ask("GET", "/healthz").text == '{"status":"ok","broker":"away"}'
    assert page.ask("GET", "/healthz", Host="evil.example").status == 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no user"),
        ("ada:operator:plain:00:11", "line 1 of the users' file"),
        ("ada:root:scrypt:00:11", "line 1 of the users' file"),
        ("ada:viewer:scrypt:00:11\nada:viewer:scrypt:00:11", "'ada' a second time"),
    ],
)
def test_a_file_of_users_that_is_none_is_refused(tmp_path, text, said):
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=said):
        Users.read(file)


def test_users_are_written_replaced_and_removed(tmp_path, monkeypatch, capsys):
    file = tmp_path / "users"
    for password, role in (("first password", "viewer"), ("second password", "operator")):
        monkeypatch.setattr("sys.stdin.readline", lambda password=password: f"{password}\n", raising=False)
        monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
        assert main(["web-user", "ada", "--file", str(file), "--role", role]) == 0
    assert file.stat().st_mode & 0o077 == 0
    assert "password" not in file.read_text()
    users = Users.read(file)
    assert users.login("ada", "first password") is None
    assert users.login("ada", "second password").role == "operator"
    monkeypatch.setattr("sys.stdin.readline", lambda: "short\n", raising=False)
    assert main(["web-user", "bob", "--file", str(file)]) == 1
    assert "the password has 5 characters" in capsys.readouterr().err
    assert main(["web-user", "ada", "--file", str(file), "--remove"]) == 0
    assert main(["web-user", "ada", "--file", str(file), "--remove"]) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trust-proxy", "nginx"], "the proxy to trust"),
        (["--user-header", "X-User"], "needs the proxy that may send it (--trust-proxy)"),
        (["--url-prefix", "celery"], "allowed is a path such as /celery"),
        (["--url-prefix", "/celery/"], "allowed is a path such as /celery"),
        (["--user-header", "X-User", "--trust-proxy", "::1", "--token", "x" * 16], "two ways to log in"),
    ],
)
def test_options_that_do_not_go_together_are_refused(capsys, options, said):
    assert main(["web", "--port", "0", *options]) in {1, 2}
    assert said in capsys.readouterr().err
