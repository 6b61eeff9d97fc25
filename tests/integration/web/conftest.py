"""The web page on the tests' broker, and kombu connections that fill it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.transport.conftest import connect, connection  # noqa: F401
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until
from tests.support.web_page import WebPage, web_page


@pytest.fixture
def page(broker_url: str) -> Iterator[WebPage]:
    """The page, and a user who is logged in."""
    with web_page(broker_url) as found:
        yield found


@pytest.fixture
def channel(connect):  # noqa: F811
    return connect().channel()


@pytest.fixture
def dead(channel):
    """Give a function that publishes messages to a queue and rejects them; it returns their tags, the longest dead first."""

    def die(queue, *bodies, **properties):
        inbox = Inbox(channel, queue, ack=False)
        publish(channel, queue, *bodies, **properties)
        inbox.drain(len(bodies))
        for message in inbox.messages:
            message.reject()
        inbox.cancel()
        letters = dead_letters_of(channel)
        return wait_until(lambda: letters.count(queue) == len(bodies) and [letter.tag for letter in letters.page(queue)])

    return die
