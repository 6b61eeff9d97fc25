"""The headers of OpenTelemetry's Celery instrumentation stay with a message wherever it goes."""

from __future__ import annotations

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from tests.support.inbox import Inbox, declare, publish

#: As W3C Trace Context has them: https://www.w3.org/TR/trace-context/
TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=x"}


def traced(inbox, count):
    """Take messages until there are `count`; return the trace headers of the last one."""
    inbox.drain(count)
    return {name: inbox.messages[-1].headers.get(name) for name in TRACE}


def test_a_trace_context_survives_delay_requeue_move_death_and_replay(connect, broker_url):
    channel = connect().channel()
    declare(channel, "first")
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "first", "x", headers={"task": "t", "id": "1", "x-delay": 100, **TRACE})
    with BrokerAdmin(broker_url) as admin:
        assert admin.messages.move("1", "q", "first") is not None
        assert traced(inbox, 1) == TRACE
        inbox.messages[-1].requeue()
        assert traced(inbox, 2) == TRACE
        inbox.messages[-1].reject()
        inbox.rest()
        (letter,) = admin.dead_letters.page("q")
        assert admin.replay(letter)
    assert traced(inbox, 3) == TRACE
