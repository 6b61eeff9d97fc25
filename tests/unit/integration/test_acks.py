from types import SimpleNamespace

from celery_redis_plus.integration.requests import install_immediate_acks
from celery_redis_plus.transport.kombu_message import Message


class Acked(Message):
    """Notes that it was acked."""

    def __init__(self):
        super().__init__({"body": b"", "headers": {}, "properties": {"delivery_tag": "t", "delivery_info": {}}})
        self.acks = []

    def ack_log_error(self, logger, errors, multiple=False):
        self.acks.append((logger, errors))


def make_consumer(*names):
    later = []
    consumer = SimpleNamespace(later=later)
    for name in names:
        setattr(consumer, name, lambda function, *arguments: later.append((function, arguments)))
    return consumer


def test_our_messages_are_settled_at_once_and_everything_else_is_left_to_the_loop():
    consumer, message = make_consumer("call_soon", "call_soon_ack"), Acked()
    install_immediate_acks(consumer)
    consumer.call_soon_ack(message.ack_log_error, "log", ())
    consumer.call_soon(message.ack_log_error, "log", ())
    consumer.call_soon(print, "control")

    assert message.acks == [("log", ())] * 2
    assert consumer.later == [(print, ("control",))]


def test_a_consumer_that_starts_again_is_left_as_it_is():
    consumer = make_consumer("call_soon")
    install_immediate_acks(consumer)
    call_soon = consumer.call_soon
    install_immediate_acks(consumer)

    assert consumer.call_soon is call_soon
    assert not hasattr(consumer, "call_soon_ack")
