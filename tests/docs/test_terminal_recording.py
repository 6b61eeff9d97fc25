"""The output on docs/command-line.md is what its commands print; none blocks the server, on a queue of 100,000 messages."""

from __future__ import annotations

import kombu
import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.integrity import CHECKED_A_CALL
from celery_redis_plus.cli.main import main
from celery_redis_plus.cli.metrics import BrokerCollector
from tests.docs.terminal_recording import OLD_TASKS, OPTIONS, PAGE, Recording, live_system, recorded, same
from tests.support.inbox import declare, publish
from tests.support.slow_calls import MEDIAN_FROM, slow_calls

#: Longest time that a call may take the server, and how often the commands are tried on a machine that is busy otherwise.
MAX_US, TRIES = 5_000, 4
#: Messages of the queue that the commands look through.
MESSAGES = 100_000
#: More events than one command reads, and how many get each of as many broadcasts.
EVENTS, SUBSCRIBERS = 1_200, 100


def scrape(url):
    """Read the metrics, as Prometheus does."""
    collector = BrokerCollector(lambda: BrokerAdmin(url))
    assert list(collector.collect())
    collector.close()


def fill_streams(url):
    """Write the event log of a queue, and an exchange whose subscribers lag."""
    with kombu.Connection(url, transport_options={"event_log": True}) as connection:
        channel = connection.channel()
        declare(channel, "logged")
        news = kombu.Exchange("news", "fanout")(channel)
        for number in range(SUBSCRIBERS):
            arguments = {"x-durable-subscriber": True}
            kombu.Queue(f"reader-{number}", news, durable=True, queue_arguments=arguments)(channel).declare()
        producer = kombu.Producer(channel, news)
        for number in range(EVENTS):
            publish(channel, "logged", number)
            producer.publish(number)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_shows_what_its_commands_print(broker_url, redis_client):
    page = PAGE.read_text(encoding="utf-8")
    recording = Recording(broker_url + OPTIONS, redis_client)
    with live_system(recording, redis_client):
        printed = recorded(page, recording)
    assert same(printed) == same(page), "run: python -m tests.docs.terminal_recording"


@pytest.mark.weekly
@pytest.mark.timeout(600)
def test_no_command_of_the_page_blocks_the_server(broker_url, redis_client, capsys):
    """By the clock, and again on a busy machine; `tests/integration/scripts/test_bounds.py` counts what calls look at."""
    page = PAGE.read_text(encoding="utf-8")
    always_slow = None
    for _ in range(TRIES):
        recording = Recording(broker_url + OPTIONS, redis_client)
        redis_client.flushdb()
        with live_system(recording, redis_client, MESSAGES), slow_calls(redis_client, MAX_US) as found:
            # So often that the median counts.
            for _ in range(MEDIAN_FROM):
                # What it finds depends on the server.
                main(["doctor"])
                scrape(broker_url)
            recorded(page, recording)
            assert main(["migrate", "--priorities", "invert"]) == 0
            assert main(["migrate", "--reverse", "--queue", "other", "--priorities", "invert"]) == 0
            fill_streams(broker_url)
            for _ in range(MEDIAN_FROM):
                assert main(["subscribers"]) == 0
                assert main(["events", "tail", "--no-follow", "--last", str(EVENTS)]) == 0
                scrape(broker_url)
        shown = capsys.readouterr().out
        assert shown.count("\nnews ") == MEDIAN_FROM * SUBSCRIBERS
        assert shown.count("logged ") >= MEDIAN_FROM * EVENTS
        assert found.calls["list_messages"] > 10
        assert found.calls["move_dead_letter"] > 4_000
        assert found.calls["check_messages"] >= 2 * MESSAGES / CHECKED_A_CALL
        assert found.calls["take_from_kombu"] + found.calls["give_to_kombu"] > 2 * OLD_TASKS / 100
        assert min(found.calls["list_subscribers"], found.calls["XRANGE"]) >= MEDIAN_FROM
        always_slow = set(found.slow) if always_slow is None else always_slow & set(found.slow)
        if not always_slow:
            return
    pytest.fail(f"these took the server over {MAX_US / 1000} ms in each of {TRIES} runs: {found.slow}")
