"""100,000 messages are browsed: issue N, Shows 2."""

import kombu

from tests.support.browsing import assert_browsing_changes_nothing, fill_each_state


def test_a_hundred_thousand_messages_are_browsed_in_short_calls_and_nothing_changes(broker_url, redis_client):
    with kombu.Connection(broker_url) as connection:
        fill_each_state(connection.default_channel)
        assert_browsing_changes_nothing(connection.default_channel, redis_client, 100_000)
