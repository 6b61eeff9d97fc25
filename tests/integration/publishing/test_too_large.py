"""A message that is larger than what Redis stores."""

from __future__ import annotations

import pytest

from celery_redis_plus.errors import MessageTooLarge
from tests.support.inbox import publish


def test_what_redis_cannot_store_is_refused_before_it_is_sent(channel, monkeypatch):
    from celery_redis_plus.broker.publishing import publisher

    monkeypatch.setattr(publisher, "MAX_BODY", 2_000_000)
    with pytest.raises(MessageTooLarge, match="at most 2000000 bytes"):
        publish(channel, "q", "x" * 2_000_001)
    publish(channel, "q", "good")
    assert channel.basic_get("q", no_ack=True).payload == "good"
