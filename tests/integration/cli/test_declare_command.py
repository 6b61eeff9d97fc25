"""`celery-redis-plus declare` and `delete` on a real server."""

from __future__ import annotations

from tests.support.inbox import Inbox, declare, publish


def test_a_queue_is_declared_once_and_deleted_with_what_is_in_it(cli, channel):
    assert cli("declare", "q", "x-max-length=5", "x-overflow=reject-publish") == (0, "queue 'q' is declared\n", "")
    assert cli("declare", "q", "x-max-length=5", "x-overflow=reject-publish").status == 0
    other = cli("declare", "q", "x-max-length=6")
    assert other.status == 1
    assert "inequivalent arg" in other.err
    assert "argument 'x-max-length' of queue 'p' is -1" in cli("declare", "p", "x-max-length=-1").err
    assert (
        "argument 'x-max-lenght' of queue 'p' is 5, which is unknown here; did you mean"
        in cli("declare", "p", "x-max-lenght=5").err
    )
    assert "streams are fanout exchanges here" in cli("declare", "p", "x-queue-type=stream").err
    channel.exchange_declare("e", type="direct")
    channel.queue_bind("q", "e", "k")
    publish(channel, "q", 1, 2)
    assert cli("delete", "q", "--dry-run").out == "queue 'q' would be deleted\n"
    assert "Delete queue 'q' with 2 messages for good?" in cli("delete", "q").err
    assert cli("delete", "q", "--yes").out == "queue 'q' is deleted\n"
    assert cli("queues", "--json").out == ""
    assert cli("export", "definitions").json_document["bindings"] == []
    assert [(one["action"], one["queue"]) for one in cli("audit", "--json").lines] == [("delete", "q"), ("declare", "q")]
    assert cli("delete", "q", "--yes").status == 1


def test_a_queue_with_consumers_stays_unless_forced(cli, channel):
    declare(channel, "used", "unused")
    Inbox(channel, "used")
    refused = cli("delete", "*used", "--yes")
    assert (refused.status, refused.out) == (1, "queue 'unused' is deleted\n")
    assert "queue 'used' has consumers and stays" in refused.err
    assert cli("delete", "used", "--yes", "--force", "--json").json["deleted"]


def test_a_deleted_durable_subscriber_gets_no_broadcasts_any_more(cli, channel, broker_url):
    channel.exchange_declare("news", type="fanout")
    channel.queue_declare("reader", arguments={"x-durable-subscriber": True})
    channel.queue_bind("reader", "news", "")
    assert cli("subscribers", "--json").out != ""
    channel.connection.client.close()
    assert cli("delete", "reader", "--yes").status == 0
    assert not any(one["durable"] for one in cli("subscribers", "--json").lines)
