"""Which broker a command acts on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from celery_redis_plus.cli.main import main
from tests.support.inbox import declare, publish

APP = """
from celery import Celery
from celery_redis_plus import configure_app

app = configure_app(Celery("shop", broker={url!r}))
app.conf.broker_transport_options = {{"global_keyprefix": "shop:"}}
other = Celery("other", broker="memory://")
"""


@pytest.fixture
def shop_app(tmp_path, monkeypatch, connect, broker_url):
    """A module `shop_app_of_test` with an app on the test's broker, whose queue is `orders`."""
    (tmp_path / "shop_app_of_test.py").write_text(APP.format(url=broker_url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)
    declare(connect(global_keyprefix="shop:").channel(), "orders")
    yield "shop_app_of_test"
    sys.modules.pop("shop_app_of_test", None)


def queues_in(text):
    return [json.loads(line)["queue"] for line in text.splitlines()]


@pytest.mark.parametrize("line", [["--app", "shop_app_of_test", "queues"], ["queues", "-A", "shop_app_of_test:app"]])
def test_an_app_gives_its_broker_and_its_prefix(shop_app, capsys, line):
    assert main([*line, "--json"]) == 0
    assert queues_in(capsys.readouterr().out) == ["orders"]


def test_events_are_read_over_the_app_s_connection(shop_app, connect, capsys):
    channel = connect(global_keyprefix="shop:", event_log=True).channel()
    declare(channel, "logged")
    publish(channel, "logged", "x")
    assert main(["-A", shop_app, "events", "tail", "--no-follow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["event"] == "published"


def test_it_is_a_command_of_celery(shop_app, tmp_path):
    command = [sys.executable, "-m", "celery", "-A", shop_app, "redisplus"]
    done = subprocess.run([*command, "queues", "--json"], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert queues_in(done.stdout) == ["orders"]
    done = subprocess.run(
        [*command, "purge", "nothing", "--yes"], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (1, "python -m celery redisplus purge: there is no queue 'nothing'\n")


def test_the_environment_gives_the_url(broker_url, connect, monkeypatch, capsys):
    declare(connect().channel(), "q")
    monkeypatch.setenv("CELERY_BROKER_URL", broker_url)
    assert main(["queues", "--json"]) == 0
    assert queues_in(capsys.readouterr().out) == ["q"]


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        (["-A", "shop_app_of_test", "queues", "--prefix", "x"], 2, "--prefix x: the app has its own global_keyprefix"),
        (["queues", "-A", "shop_app_of_test", "-b", "redis://h"], 2, "--app shop_app_of_test and --broker name two brokers"),
        (["queues", "-b", ""], 2, "--broker is empty; allowed is a URL"),
        (["queues", "-A", "no_such_module"], 2, "--app no_such_module: ModuleNotFoundError"),
        (["queues", "-A", "shop_app_of_test:other"], 1, "allowed: one of celery-redis-plus"),
        (["events", "readers", "-A", "shop_app_of_test"], 1, "no queue under prefix 'shop:' at"),
        (["queues", "-b", "redis://127.0.0.1:1/0"], 3, "Connection refused"),
    ],
)
def test_a_broker_that_cannot_be_used_is_explained(shop_app, capsys, line, status, message):
    assert main(line) == status
    assert message in capsys.readouterr().err


def test_a_password_in_the_line_is_warned_about_and_not_printed(capsys):
    assert main(["queues", "--broker", "redis://:hidden@127.0.0.1:1/0"]) == 3
    error = capsys.readouterr().err
    assert "a password in --broker is shown by `ps`: set $CELERY_BROKER_URL instead, or use --app" in error
    assert "hidden" not in error
