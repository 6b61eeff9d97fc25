"""Consumer processes and Celery workers on a server of the test's own, with a short grace."""

import pytest

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.processes import Processes, ProcessRecord
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import UnackedMessages
from celery_redis_plus.broker.fanout.subscriber_cursor import SubscriberCursors
from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.keys import Keys
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.heartbeat import Heartbeat
from celery_redis_plus.maintenance.leader import Leadership
from celery_redis_plus.maintenance.lost_processes import LostProcesses
from celery_redis_plus.maintenance.own_process import OwnProcess
from celery_redis_plus.maintenance.process_recovery import LostRoles
from celery_redis_plus.maintenance.runner import TaskRunner
from celery_redis_plus.options import Options
from celery_redis_plus.stored_message import Claimed
from tests.integration.transport.conftest import connect  # noqa: F401
from tests.support.apps import JOURNAL_DB, make_app
from tests.support.consuming import consumers

GRACE_S = 1
KEYS = Keys()


@pytest.fixture
def own_server(start_server):
    """One that keeps its data over a restart."""
    return start_server({"appendonly": "yes"})


@pytest.fixture
def crew(own_server, tmp_path):
    with own_server.client(JOURNAL_DB) as journal, consumers(own_server.url(), journal, tmp_path) as crew:
        yield crew


@pytest.fixture
def client(own_server):
    with own_server.client(decode_responses=True) as client:
        yield client


@pytest.fixture
def journal(own_server):
    """What tasks have noted: `started:NAME` when they begin, `NAME` when they end."""
    with own_server.client(JOURNAL_DB, decode_responses=True) as client:
        yield lambda name: client.lrange(f"ran:{name}", 0, -1)


@pytest.fixture
def worker(own_server, start_worker):
    """Start a Celery worker: `worker(pool="solo", prefetch=4, visibility_timeout=3)`.

    It consumes from `url`; what its tasks note goes to the server itself.
    """

    def start(url=None, *, pool="threads", concurrency=2, prefetch=1, **options):
        config = {
            "task_acks_late": True,
            "worker_prefetch_multiplier": prefetch,
            "broker_transport_options": {"connection_lost_grace": GRACE_S, **options},
        }
        if url:
            config["broker_read_url"] = url
        env = {"CRP_TEST_CONFIG": repr(config)}
        return start_worker(broker=own_server.url(), pool=pool, concurrency=concurrency, env=env)

    return start


@pytest.fixture
def send(own_server):
    """Send tasks that sleep: `send("name", count, sleep_s)`."""
    app = make_app(own_server.url())

    def send_tasks(name, count, sleep_s):
        for number in range(count):
            app.send_task("tests.note", [name, str(number)], {"sleep_s": sleep_s})

    yield send_tasks
    app.close()


class Clock:
    def __init__(self, monkeypatch):
        self._now = clock.now_s()
        monkeypatch.setattr(clock, "now_s", lambda: self._now)

    def advance(self, seconds):
        self._now += seconds


class Process:
    """The maintenance task of one process, without its thread."""

    def __init__(self, name, url, **options):
        self.name = name
        self.options = Options(**options)
        connector = Connector(Address.from_url(url), self.options)
        self.commands = CommandConnection(connector, "maintenance", timeout=5, learns_id=True)
        self.timers = BlockingConnection(connector, "timers", timeout=5, learns_id=True)
        self.consumed = ConsumedQueues()
        self.consumed.add("q", f"session of {name}.1", None)
        self.unacked_messages = UnackedMessages()
        #: It consumes in another shard of the broker.
        self.elsewhere = False
        grace_s = self.options.connection_lost_grace
        own = OwnProcess(
            (self.commands, self.timers),
            self.consumed,
            self.unacked_messages,
            SubscriberCursors(300),
            grace_s=grace_s,
            heartbeat_s=5,
            needed_besides=lambda: self.elsewhere,
        )
        self.registry = Processes(self.commands, KEYS, delivery_limit=5, dead_letter_max=10)
        self.leadership = Leadership(grace_s)
        self.heartbeat = Heartbeat(self.commands, self.registry, own, self.leadership, name=name, visibility_timeout_s=300)
        self.lost = LostProcesses(self.commands, self.registry, self.heartbeat, self.leadership, LostRoles(), name=name)
        self.task = TaskRunner((), first=(self.heartbeat,), of_leader=(self.lost,), leads=lambda: self.leadership.leads)

    def run_now(self):
        """Do all that this process may have to do."""
        self.heartbeat.run_soon()
        self.lost.run_soon()
        self.task.run()

    def beat(self, process, record):
        """Send the heartbeat of another process, which cannot lead."""
        self.registry.beat(process, record, may_lead=False, asks=False, lease_s=3, version="", next_s=0)

    def claim(self):
        """Have a message."""
        self.unacked_messages.add([Claimed("m", "q", 1, 0, False, b"", b"")], "session", clock.now_s())

    def settle(self):
        self.unacked_messages.discard(self.unacked_messages.begin_settling("m", Settlement.ACK))

    def record(self, client):
        return ProcessRecord.decode(client.hget(KEYS.processes[0], self.name).decode())

    def close(self):
        self.commands.close()
        self.timers.abort()


@pytest.fixture
def start(broker_url):
    started = []

    def start(name, url=broker_url, **options):
        started.append(Process(name, url, **options))
        started[-1].task.run()
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def time(monkeypatch):
    return Clock(monkeypatch)
