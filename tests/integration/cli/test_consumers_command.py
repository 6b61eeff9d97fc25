from __future__ import annotations

import os

from celery_redis_plus.cli.main import main
from tests.support.inbox import Inbox


def test_consumers_lists_who_consumes(connect, broker_url, capsys):
    Inbox(connect(global_keyprefix="shop:").channel(), "q")
    assert main(["consumers", "--url", broker_url, "--prefix", "shop:", "q"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["QUEUE", "CONSUMER", "HOST"]
    assert str(os.getpid()) in line.split()


def test_the_url_comes_from_celery_s_variable(connect, broker_url, capsys, monkeypatch):
    Inbox(connect().channel(), "q")
    monkeypatch.setenv("CELERY_BROKER_URL", broker_url)
    assert main(["consumers", "q"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_an_unknown_queue_is_an_error(broker_url, capsys):
    assert main(["consumers", "--url", broker_url, "nothing"]) == 1
    assert "there is no queue 'nothing'" in capsys.readouterr().err
