"""The Celery app of the chaos tests, for workers (`celery -A tests.chaos.app`) and for the tests' own process."""

from __future__ import annotations

import ast
import ctypes
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, shared_task
from celery.exceptions import Reject
from celery.signals import worker_ready
from celery.worker.control import inspect_command
from kombu import Exchange, Queue

from celery_redis_plus import configure_app
from celery_redis_plus.maintenance.runner import TaskRunner
from tests.chaos.canary import start_canary
from tests.chaos.ledger import Pen
from tests.chaos.load.queues import GRAVES
from tests.support.judge.recorder import install

BROKER_VARIABLE = "CRP_TEST_BROKER"
CONFIG_VARIABLE = "CRP_CHAOS_CONFIG"
#: A folder: while it has a file with the id of a worker, the maintenance thread of that does nothing.
STALLS_VARIABLE = "CRP_CHAOS_STALLS"
#: Seconds without an answer of the server after which a worker of a storm may have lost its leases (5 s) by no fault of a thread.
HOLE_S = 3.0
#: Names are not resolved until the file that this names is there.
DNS_VARIABLE = "CRP_CHAOS_DNS"
#: Longest time for which a task waits for a test, in seconds.
PATIENCE_S = 120.0
#: Seconds for which a task holds its message, if nothing happens.
HELD_S = 3600.0

#: The task that is acked before it runs.
EARLY = "chaos.run_early"

pen = Pen()


@shared_task(name="chaos.run", bind=True)
def run(self: Task, name: str, sleep_s: float = 0.0) -> None:
    """Note the start, take `sleep_s` seconds, note the end."""
    redelivered = bool(self.request.delivery_info.get("redelivered"))
    pen.write("start", name, redelivered=redelivered)
    if sleep_s:
        time.sleep(sleep_s)
    pen.write("end", name, redelivered=redelivered)


@shared_task(name=EARLY, bind=True, acks_late=False)
def run_early(self: Task, name: str, sleep_s: float = 0.0) -> None:
    """Do as `run`, with the acks that Celery has by default: early ones."""
    run.run.__func__(self, name, sleep_s)


@shared_task(name="chaos.until", bind=True)
def until(self: Task, name: str, path: str) -> None:
    """Note the start, wait until the file `path` exists, note the end."""
    redelivered = bool(self.request.delivery_info.get("redelivered"))
    pen.write("start", name, redelivered=redelivered)
    _wait_for(path)
    pen.write("end", name, redelivered=redelivered)


@shared_task(name="chaos.held", bind=True)
def held(self: Task, name: str) -> None:
    """Note the start, and wait for the worker's death; when redelivered, note the end at once."""
    redelivered = bool(self.request.delivery_info.get("redelivered"))
    pen.write("start", name, redelivered=redelivered)
    if not redelivered:
        time.sleep(HELD_S)
    pen.write("end", name, redelivered=redelivered)


@shared_task(name="chaos.stop_threads", bind=True)
def stop_threads(self: Task, name: str, seconds: int) -> None:
    """Note the start, hold the interpreter's lock for so long, note the end."""
    redelivered = bool(self.request.delivery_info.get("redelivered"))
    pen.write("start", name, redelivered=redelivered)
    # Functions that PyDLL calls keep the lock, as a long computation in C does.
    ctypes.PyDLL(None).sleep(seconds)
    pen.write("end", name, redelivered=redelivered)


@shared_task(name="chaos.rejected_first", bind=True, acks_late=True)
def rejected_first(self: Task, name: str, first: str, second: str) -> None:
    """Wait for the file `first` and ask for a requeue; when redelivered, wait for the file `second` and end."""
    redelivered = bool(self.request.delivery_info.get("redelivered"))
    pen.write("start", name, redelivered=redelivered)
    _wait_for(second if redelivered else first)
    if not redelivered:
        pen.write("reject", name)
        raise Reject("asked to", requeue=True)
    pen.write("end", name, redelivered=redelivered)


@shared_task(
    name="chaos.unique",
    bind=True,
    unique="until-success",
    unique_by=["key"],
    retry_on={ConnectionError: "constant first=50ms limit=9"},
)
def unique(self: Task, key: str, fails: int) -> None:
    """Note each try, and fail in so many."""
    name = f"{key}.{self.request.id}.{self.request.retries}"
    pen.write("start", name, redelivered=bool(self.request.delivery_info.get("redelivered")))
    time.sleep(0.01)
    pen.write("end", name)
    if self.request.retries < fails:
        raise ConnectionError("as asked")


@shared_task(name="chaos.debounced", bind=True, acks_late=True, debounce=0.3, max_wait=1.5, unique_by=["key"])
def debounced(self: Task, key: str, number: int) -> None:
    """Note the run, and with which arguments."""
    name = f"{key}.{self.request.id}.{number}"
    pen.write("start", name, redelivered=bool(self.request.delivery_info.get("redelivered")))
    time.sleep(0.01)
    pen.write("end", name)


@shared_task(name="chaos.poison", bind=True, acks_late=True)
def poison(self: Task, name: str, again: bool) -> None:
    """Be rejected, with a wish for a requeue where `again`; as a dead letter, note the end."""
    pen.write("start", name, redelivered=bool(self.request.delivery_info.get("redelivered")))
    if self.request.delivery_info.get("routing_key") == GRAVES:
        pen.write("end", name)
        return
    pen.write("reject" if again else "bury", name)
    raise Reject("asked to", requeue=again)


def _wait_for(path: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.005)


@inspect_command(name="chaos_vitals")
def vitals(state: Any) -> dict[str, Any]:
    """What must not grow in a worker's main process: loop timers, readers, threads, descriptors."""
    hub = state.consumer.hub
    # A cancelled timer stays in the queue until its time.
    waiting = [] if hub is None else [item.entry for item in hub.timer.queue if not item.entry.canceled]
    return {
        "timers": sorted(entry.fun.__qualname__ for entry in waiting),
        "readers": [] if hub is None else sorted(map(_callback, hub.readers.values())),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": sorted(_target(path) for path in Path("/proc/self/fd").iterdir()),
    }


def _callback(reader: tuple[Any, tuple[Any, ...]]) -> str:
    return str(getattr(reader[0], "__qualname__", reader[0]))


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink()).split(":", maxsplit=1)[0]
    except OSError:  # the descriptor of the directory itself
        return "/proc/self/fd"


def make_app(broker: str, **config: Any) -> Celery:
    """Return an app on `broker`; close it with `app.close()`.

    `queues`: name -> arguments of the queues that it knows. `bindings`: name -> exchange, its type, and the key by which further
    queues are bound to it. `configured`: arguments of `configure_app`.
    """
    queues, configured = config.pop("queues", None), config.pop("configured", {})
    bindings = config.pop("bindings", {})
    if queues is not None:
        plain = [Queue(name, durable=True, queue_arguments=arguments) for name, arguments in queues.items()]
        config["task_queues"] = [*plain, *map(bound_queue, bindings.items())]
    app = Celery("chaos", broker=broker, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        **config,
    )
    return configure_app(app, **configured)


def bound_queue(binding: tuple[str, tuple[str, str, str]]) -> Queue:
    """Return a queue by its name, its exchange's name and type, and its key."""
    name, (exchange, kind, key) = binding
    return Queue(name, Exchange(exchange, kind, durable=True), routing_key=key, durable=True)


def _lose_the_resolver(until: str) -> None:
    """Let no name be resolved, as without a network, until the file `until` is there; then all are this machine."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **named: Any) -> Any:
        if not Path(until).exists():
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1" if str(host).endswith(".invalid") else host, *arguments, **named)

    socket.getaddrinfo = getaddrinfo


def _stall_maintenance(folder: str) -> None:
    run = TaskRunner.run

    def run_unless_stalled(runner: TaskRunner, *, news: bool = True) -> float:
        while Path(folder, str(os.getpid())).exists():
            time.sleep(0.01)
        return run(runner, news=news)

    TaskRunner.run = run_unless_stalled  # type: ignore[method-assign]


def _app_of_worker() -> Celery | None:
    broker = os.environ.get(BROKER_VARIABLE)
    if not broker:
        return None
    install()
    if STALLS_VARIABLE in os.environ:
        _stall_maintenance(os.environ[STALLS_VARIABLE])
        # Behind the pool's start, which forks.
        worker_ready.connect(lambda **_: start_canary(broker, HOLE_S), weak=False)
    if DNS_VARIABLE in os.environ:
        _lose_the_resolver(os.environ[DNS_VARIABLE])
    return make_app(broker, **ast.literal_eval(os.environ.get(CONFIG_VARIABLE, "{}")))


app = _app_of_worker()
