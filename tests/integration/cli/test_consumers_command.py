from __future__ import annotations

import json
import os

from celery_redis_plus.cli.main import main
from celery_redis_plus.version import __version__
from tests.support.inbox import Inbox


def test_consumers_lists_who_consumes(connect, broker_url, capsys):
    Inbox(connect(global_keyprefix="shop:").channel(), "q")
    assert main(["consumers", "--url", broker_url, "--prefix", "shop:", "q"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["QUEUE", "CONSUMER", "HOST"]
    assert str(os.getpid()) in line.split()


def test_consumers_tells_which_release_each_runs(connect, broker_url, capsys):
    Inbox(connect(release="2026.11-a1f").channel(), "q")
    Inbox(connect().channel(), "without")
    assert main(["consumers", "--url", broker_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-2:] == ["RELEASE", "VERSION"]
    assert {line.split()[0]: line.split()[-2:] for line in lines[1:]} == {
        "q": ["2026.11-a1f", __version__],
        "without": ["-", __version__],
    }
    assert main(["consumers", "--url", broker_url, "--json", "q"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["release"], told["version"]) == ("2026.11-a1f", __version__)


def test_a_consumer_of_an_older_version_tells_none(connect, redis_client, broker_url, capsys):
    Inbox(connect().channel(), "q")
    (key,) = redis_client.scan_iter("consumer:*")
    redis_client.hdel(key, "release", "version")
    assert main(["consumers", "--url", broker_url]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-2:] == ["-", "-"]


def test_the_url_comes_from_celery_s_variable(connect, broker_url, capsys, monkeypatch):
    Inbox(connect().channel(), "q")
    monkeypatch.setenv("CELERY_BROKER_URL", broker_url)
    assert main(["consumers", "q"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_an_unknown_queue_is_an_error(broker_url, capsys):
    assert main(["consumers", "--url", broker_url, "nothing"]) == 1
    assert "there is no queue 'nothing'" in capsys.readouterr().err
