import weakref
from datetime import UTC, datetime

import pytest
from amqp.basic_message import Message as AmqpMessage
from celery import Celery, signals

from celery_redis_plus import configure_app
from celery_redis_plus.integration.publishing import EtaProperty

NOON = "2030-07-01T12:00:00"
NOON_UTC_S = datetime(2030, 7, 1, 12, tzinfo=UTC).timestamp()


def make(**settings):
    app = Celery("unit", set_as_current=False)
    app.config_from_object({"broker_url": "redis://h", **settings})
    return configure_app(app)


def send(app, eta):
    """What the signal makes of a task's headers and properties."""
    receiver = EtaProperty()
    vars(receiver)["_apps"] = [weakref.ref(app)]
    headers, properties = {"eta": eta}, {}
    receiver(sender="task", headers=headers, properties=properties)
    return headers["eta"], properties.get("eta")


@pytest.mark.parametrize(
    ("eta", "seconds"),
    [
        (None, None),
        (f"{NOON}+00:00", NOON_UTC_S),
        (f"{NOON}.123456+00:00", NOON_UTC_S + 0.124),
        (f"{NOON}+02:00", NOON_UTC_S - 7200),
        (NOON, NOON_UTC_S),
        ("tomorrow", None),
    ],
)
def test_eta_becomes_a_property_in_unix_seconds(eta, seconds):
    assert send(make(), eta) == (eta, seconds)


def test_naive_eta_is_local_time_where_the_settings_say_so():
    app = make(enable_utc=False, timezone="Europe/Paris")

    assert send(app, NOON) == (f"{NOON}+02:00", NOON_UTC_S - 7200)
    assert send(app, f"{NOON}+00:00") == (f"{NOON}+00:00", NOON_UTC_S)


def test_app_with_another_broker_keeps_its_messages_as_they_are():
    assert send(make(broker_url="memory://", enable_utc=False, timezone="Europe/Paris"), NOON) == (NOON, None)


def test_message_without_an_app_of_ours_is_left_alone():
    properties = {}
    EtaProperty()(sender="task", headers={"eta": NOON}, properties=properties)

    assert properties == {}


def test_signal_has_one_receiver_for_all_apps():
    make()
    count = len(signals.before_task_publish.receivers)
    make()
    make()

    assert len(signals.before_task_publish.receivers) == count


def test_amqp_does_not_send_the_property():
    assert "eta" not in {name for name, _ in AmqpMessage.PROPERTIES}


def test_app_is_known_by_the_queue_that_it_declares():
    utc, tokyo = make(), make(enable_utc=False, timezone="Asia/Tokyo")
    receiver = EtaProperty()
    receiver.add(utc)
    receiver.add(tokyo)
    found = []
    for app in (utc, tokyo):
        headers, properties = {"eta": NOON}, {}
        receiver(sender="task", headers=headers, properties=properties, declare=[app.amqp.queues["celery"]])
        found.append(properties["eta"])

    assert found == [NOON_UTC_S, NOON_UTC_S - 9 * 3600]
