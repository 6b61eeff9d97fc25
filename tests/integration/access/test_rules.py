"""The rights of each role are enough for what it does, and it is refused the rest."""

import datetime as dt

import kombu
import pytest
from celery import Celery
from kombu import pools

from celery_redis_plus import configure_app
from celery_redis_plus.cli.main import main
from celery_redis_plus.errors import NoPermission
from celery_redis_plus.event_log.readers import commit, readers
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.integration.messages import message
from tests.integration.celery.app import CONFIG_VARIABLE, JOURNAL_VARIABLE, SETUP_VARIABLE, URL_VARIABLE
from tests.support.access import BY_NAME, RoleServer
from tests.support.inbox import Inbox
from tests.support.servers import new_server
from tests.support.waiting import wait_until
from tests.support.web_page import web_page


@pytest.fixture(scope="module")
def program():
    with new_server() as server:
        yield server


@pytest.fixture
def secured(program):
    """An empty server with all roles; nothing may have been refused at the end."""
    server = RoleServer(program, "worker")
    with server.client() as admin:
        admin.flushall()
    server.grant()
    yield server
    assert server.refusals() == []


def publish_all(url):
    """Do what publishers do; return the number of messages in `q`."""
    app = configure_app(Celery("shop", broker=url, set_as_current=False), event_log=True)
    app.conf.broker_transport_options = {"wait_replicas": 0, "publish_timeout": 0}
    app.conf.task_default_queue = "q"
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        for options in ({}, {"countdown": 60}, {"eta": later}, {"priority": 9}, {"expires": 600}):
            app.send_task("t", (1,), connection=connection, **options)
        producer = kombu.Producer(channel)
        producer.publish("x" * 2_000_000, routing_key="q")
        producer.publish("once", routing_key="q", headers={"x-deduplication-id": "a"})
        producer.publish("once", routing_key="q", headers={"x-deduplication-id": "a"})
        topic = kombu.Exchange("news", "topic", durable=True)
        kombu.Queue("q", topic, routing_key="a.#", durable=True)(channel).bind_to("news", "a.#")
        producer.publish("topic", exchange=topic, routing_key="a.b", declare=[topic])
        fanout = kombu.Exchange("all", "fanout")
        producer.publish("all", exchange=fanout, declare=[fanout])
        bounded = kombu.Queue("bounded", durable=True, queue_arguments={"x-max-length": 5})(channel)
        bounded.declare()
        for number in range(3):
            producer.publish(number, routing_key="bounded")
        channel.queue_declare("passive", durable=True)
        channel.queue_declare("passive", durable=True, passive=True)
        producer.publish("nowhere", exchange=topic, routing_key="nothing")
        sizes = channel.queue_sizes("q")
    app.close()
    pools.reset()
    return sizes.ready + sizes.delayed


def test_a_publisher_publishes(secured):
    assert publish_all(secured.url(role="publisher")) == 8


@pytest.mark.parametrize("role", BY_NAME)
def test_no_role_has_a_dangerous_command_that_changes_anything(secured, role):
    with secured.client() as admin:
        dangerous = {*admin.acl_cat("dangerous"), *admin.acl_cat("admin")}
        writes = set(admin.acl_cat("write"))
    commands = set(BY_NAME[role].commands())
    assert dangerous & commands <= {"info", "role", "client|list"}
    if role == "monitor":
        assert not writes & commands


def test_a_monitor_looks_and_may_not_change_anything(secured, capsys):
    publish_all(secured.url())
    with kombu.Connection(secured.url()) as connection:
        inbox = Inbox(connection.channel(), "q", prefetch=2)
        inbox.drain(1)
        url = secured.url(role="monitor")
        app = configure_app(Celery("m", broker=url, set_as_current=False))
        assert message(app, inbox.messages[0].delivery_tag, queue="q").queue == "q"
        app.close()
        pools.reset()
        tag = inbox.messages[0].delivery_tag
        for command in (
            *(
                ["check"],
                ["consumers", "q"],
                ["counters", "q"],
                ["dead-letters", "list", "q"],
                ["queues"],
                ["queue", "q"],
                ["audit"],
            ),
            *(["messages", "show", tag], ["messages", "show", "nobody"], ["why", tag, "--sample", "0"]),
        ):
            assert main([*command, "--url", url]) in {0, 1}, (command, capsys.readouterr())
        with web_page(url, read_only=True) as page:
            shown = ("/", "/queue?name=q", f"/message?queue=q&id={tag}", "/consumers", "/scheduled", "/dead-letters?queue=q")
            assert {path: page.get(path).status for path in shown} == dict.fromkeys(shown, 200)
        with kombu.Connection(url) as monitor:
            channel = monitor.channel()
            assert channel.queue_sizes("q").ready
            assert channel.queue_sizes("q").unacked
            assert secured.refusals() == []
            with pytest.raises((NoPermission, kombu.exceptions.OperationalError)):
                kombu.Producer(channel).publish("x", routing_key="q")
        connection.default_channel.close()
    secured.grant()


def test_a_reader_reads_events_and_sees_no_messages(secured, tmp_path):
    publish_all(secured.url())
    url = secured.url(role="reader")
    with EventLog(url) as log:
        assert "q" in log.queues("*")
        offsets = log.numberings(["q"])["q"]
        assert offsets
        how = ("HMGET", log.keys.queue("q").events_meta, "permille", "payload")
        assert log.ask([how]) == [[b"1000", b"0"]], "how events are written is told to readers"
        commit(log, "mine", {"q": (0, 0)})
        assert [reader.name for reader in readers(log, ["q"])] == ["mine"]
    assert main(["events", "readers", "--url", url]) == 0
    assert main(["events", "drop-reader", "mine", "--url", url]) == 0
    assert main(["events", "export", "--url", url, "--format", "jsonl", "--output", str(tmp_path / "events")]) == 0
    assert main(["events", "archive", "--url", url, "--to", str(tmp_path)]) == 0
    assert secured.refusals() == []
    with kombu.Connection(url) as connection, pytest.raises((NoPermission, kombu.exceptions.OperationalError)):
        connection.default_channel.queue_sizes("q")
    secured.grant()


@pytest.mark.slow
def test_a_worker_of_celery_works(secured, start_worker, program):
    url = secured.url()
    env = {SETUP_VARIABLE: "configured", URL_VARIABLE: url, CONFIG_VARIABLE: "{}", JOURNAL_VARIABLE: program.url(1, "redis")}
    worker = start_worker("tests.integration.celery.app", pool="threads", env=env)
    app = configure_app(Celery("c", broker=url, set_as_current=False))
    for countdown in (0, 0.5):
        app.send_task("c.note", ("n", str(countdown)), countdown=countdown)
    assert app.control.ping(timeout=5, limit=1)
    with program.client(1) as journal:
        wait_until(lambda: journal.llen("n:done") == 2, 20, worker.tail)
    assert worker.stop() == 0
    app.close()
    pools.reset()
    assert "refuse" not in worker.log().lower()


@pytest.mark.parametrize(
    ("right", "role", "needs"),
    [
        ("-zadd", "publisher", publish_all),
        ("-evalsha", "publisher", publish_all),
        ("-script|load", "publisher", publish_all),
        ("-hincrby", "worker", publish_all),
        ("-rename", "publisher", publish_all),
        ("-client|info", "worker", lambda url: kombu.Connection(url).channel().queue_declare("x", exclusive=True)),
    ],
)
def test_less_is_not_enough(secured, right, role, needs):
    secured.grant("", right)
    with pytest.raises((NoPermission, kombu.exceptions.OperationalError)):
        needs(secured.url(role=role))
    assert any(right.removeprefix("-").partition("|")[0] in refused for refused in secured.refusals()), secured.refusals()
    pools.reset()
    secured.grant()


def test_a_prefix_keeps_apps_apart(secured):
    secured.grant("shop[1]:")
    with kombu.Connection(secured.url(role="publisher"), transport_options={"global_keyprefix": "shop[1]:"}) as connection:
        connection.default_channel.queue_declare("q", durable=True)
        kombu.Producer(connection).publish("x", routing_key="q")
    assert secured.refusals() == []
    with (
        kombu.Connection(secured.url(role="publisher"), transport_options={"global_keyprefix": "shop1:"}) as other,
        pytest.raises((NoPermission, kombu.exceptions.OperationalError)),
    ):
        other.default_channel.queue_declare("q", durable=True)
    secured.grant()
