import weakref
from unittest import mock

import pytest
from celery import Celery, signals

from celery_redis_plus import configure_app
from celery_redis_plus.integration.publishing import EtaOffset

NOON = "2030-07-01T12:00:00"


def make(**settings):
    app = Celery("unit", set_as_current=False)
    app.config_from_object({"broker_url": "redis://h", **settings})
    return configure_app(app)


def send(app, eta):
    """What the signal makes of a task's header."""
    receiver = EtaOffset()
    vars(receiver)["_apps"] = [weakref.ref(app)]
    headers = {"eta": eta}
    receiver(sender="task", headers=headers)
    return headers["eta"]


@pytest.mark.parametrize("eta", [None, f"{NOON}.123456+00:00", f"{NOON}+02:00", NOON, "tomorrow"])
def test_eta_stays_as_it_is_where_times_are_utc(eta):
    assert send(make(), eta) == eta


def test_naive_eta_is_local_time_where_the_settings_say_so():
    app = make(enable_utc=False, timezone="Europe/Paris")

    assert send(app, NOON) == f"{NOON}+02:00"
    assert send(app, f"{NOON}+00:00") == f"{NOON}+00:00"
    assert send(app, "tomorrow") == "tomorrow"


def test_app_with_another_broker_keeps_its_messages_as_they_are():
    assert send(make(broker_url="memory://", enable_utc=False, timezone="Europe/Paris"), NOON) == NOON


def test_message_without_an_app_of_ours_is_left_alone():
    headers = {"eta": NOON}
    EtaOffset()(sender="task", headers=headers)

    assert headers == {"eta": NOON}


def test_signal_has_one_receiver_for_all_apps():
    make()
    count = len(signals.before_task_publish.receivers)
    make()
    make()

    assert len(signals.before_task_publish.receivers) == count


def test_app_is_known_by_the_queue_that_it_declares():
    utc, tokyo = make(), make(enable_utc=False, timezone="Asia/Tokyo")
    receiver = EtaOffset()
    receiver.add(utc)
    receiver.add(tokyo)
    found = []
    for app in (utc, tokyo):
        headers = {"eta": NOON}
        receiver(sender="task", headers=headers, declare=[app.amqp.queues["celery"]])
        found.append(headers["eta"])

    assert found == [NOON, f"{NOON}+09:00"]


def test_a_patch_of_the_class_counts_for_a_configured_app():
    app = make()
    with mock.patch("celery.Celery.send_task") as patched:
        app.send_task("x")

    assert patched.call_count == 1
