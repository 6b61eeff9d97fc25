from __future__ import annotations

import json

from celery_redis_plus.cli.main import main
from tests.support.inbox import declare, publish


def test_counters_are_shown_by_queue(connect, broker_url, capsys):
    channel = connect(global_keyprefix="shop:").channel()
    for number, queue in enumerate(("one", "another")):
        declare(channel, queue)
        publish(channel, queue, *range(number + 1))
    line = ["counters", "--url", broker_url, "--prefix", "shop:", "one", "another"]
    assert main(line) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["COUNTER", "another", "one"]
    assert ["published", "2", "1"] in rows
    assert ["throttled_s", "0.0", "0.0"] in rows
    assert main([*line, "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {counts["queue"]: counts["ready"] for counts in shown} == {"one": 1, "another": 2}


def test_a_pattern_selects_queues_and_may_find_none(cli, channel):
    declare(channel, "shop.mail", "shop.pay", "other")
    assert [counts["queue"] for counts in cli("counters", "shop.*", "--json").lines] == ["shop.mail", "shop.pay"]
    assert cli("counters", "nothing.*", "--json").lines == []
    nothing = cli("counters", "nothing.*")
    assert (nothing.status, nothing.out, nothing.err) == (0, "", "no queue matches 'nothing.*'\n")


def test_many_queues_have_a_row_each_without_what_is_0_for_all(cli, channel):
    names = [f"team.service-{number:02}" for number in range(60)]
    declare(channel, *names)
    publish(channel, names[1], "x")
    head, *rows = (line.split() for line in cli("counters", "team.*").out.splitlines())
    assert head == ["QUEUE", "published", "ready"]
    assert rows == [[name, "1", "1"] if name == names[1] else [name, "0", "0"] for name in names]


def test_a_name_may_look_like_a_pattern(cli, channel):
    declare(channel, "[x]*", "x1")
    assert [counts["queue"] for counts in cli("counters", "[x]*", "--json").lines] == ["[x]*", "x1"]


def test_an_unknown_queue_is_an_error(broker_url, capsys):
    assert main(["counters", "--url", broker_url, "nothing"]) == 1
    assert "there is no queue 'nothing'" in capsys.readouterr().err
