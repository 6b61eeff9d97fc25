"""Every message's events are a legal path, and what they add up to is what the tasks wrote down (issue F, Shows 1 and 2)."""

import itertools
import random
from collections import Counter

import pytest

import celery_redis_plus as crp
from celery_redis_plus import RetryPolicy
from celery_redis_plus.events import GONE, TRANSITIONS, shown_state
from celery_redis_plus.keys import Keys
from tests.chaos.state import places
from tests.integration.lifecycle.app import CONFIG_VARIABLE, URL_VARIABLE, make_app
from tests.support.events import event_violations, paths_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

QUEUE = "celery"
WORKERS, CONCURRENCY = 2, 2
#: How a task ends -> its share of all.
FATES = {
    "success": 0.73,
    "failure": 0.08,
    "retry": 0.06,
    "rejected": 0.05,
    "requeue": 0.02,
    "expired": 0.03,
    "cancelled": 0.03,
}
#: One task in so many kills the process that runs it, and one in so many workers is killed as a whole.
TASKS_A_KILL, TASKS_A_WORKER_KILL = 400, 2500
#: How a task ends -> the state of its last message.
ENDS = {
    "success": "COMPLETED",
    "kill": "COMPLETED",
    "requeue": "COMPLETED",
    "retry": "COMPLETED",
    "failure": "FAILED failure",
    "rejected": "DEAD rejected",
    "expired": "FAILED",
    "cancelled": "FAILED",
}
SETTINGS = {
    "worker_prefetch_multiplier": 4,
    "broker_transport_options": {
        "visibility_timeout": 3, "event_log_maxlen": 10**7, "event_log_hard_maxlen": 10**7, "dead_letter_max": 100_000,
    },
}  # fmt: skip
CONFIGURED = {"event_log": True, "ack_policy": "ack_after"}


@pytest.fixture
def make_worker(ledger, tmp_path):
    """Prepare a worker whose tasks end as they are told; what still lives at the end is killed."""
    made = []

    def make(url, configured=CONFIGURED, settings=SETTINGS, **how):
        env = {URL_VARIABLE: url, CONFIG_VARIABLE: repr((configured, settings))}
        how.setdefault("concurrency", CONCURRENCY)
        made.append(Worker("tests.integration.lifecycle.app", tmp_path, env=env, forked=False, **how))
        return made[-1]

    yield make
    for worker in made:
        worker.kill()


@pytest.fixture
def make_publisher_app():
    apps = []

    def make(url, configured=CONFIGURED, settings=SETTINGS):
        apps.append(make_app(url, configured, settings))
        return apps[-1]

    yield make
    for app in apps:
        app.close()


def send(app, tasks, chooser):
    fates = {}
    with app.connection_for_write() as connection:
        for number in range(tasks):
            how = "kill" if number % TASKS_A_KILL == 7 else chooser.choices(list(FATES), list(FATES.values()))[0]
            name = f"{how}-{number}"
            fates[name] = how
            # What has expired waits in the queue like all others, until somebody looks at it.
            limits = {"expired": {"expires": 0.001}, "cancelled": {"countdown": 3600}}.get(how, {})
            app.send_task("life.fate", [name, how], task_id=name, connection=connection, **limits)
    return fates


def final_state(path):
    last = path[-1]
    state = TRANSITIONS[last.event].target
    shown = shown_state(state, event=last.event, reason=last.reason or "", tried=any(event.claim for event in path))
    return f"{shown} {last.reason}" if (last.reason and state != GONE) or last.reason == "failure" else shown


def settled(client):
    """Whether nothing is left but dead letters."""
    found = places(client, QUEUE)
    return not (found["queue"] or found["delayed"] or found["messages_index"])


def test_every_path_is_legal_and_the_states_add_up_to_the_ledger(
    *, full, own_server, ledger, make_publisher_app, make_worker, figures
):
    app = make_publisher_app(own_server.url())
    crew = [make_worker(own_server.url()) for _ in range(WORKERS)]
    tasks = 20_000 if full else 2_000
    fates = send(app, tasks, random.Random(8))
    for worker in crew:
        worker.start(wait=False)
    turns = itertools.cycle(crew)
    with own_server.client() as client:
        cancelled = [path[0] for path in paths_of(client, Keys(), QUEUE).values() if fates[path[0].task_id] == "cancelled"]
        assert all(crp.cancel(app, event.id, queue=QUEUE) for event in cancelled)
        for moment in range(TASKS_A_WORKER_KILL // 2, int(tasks * 0.85), TASKS_A_WORKER_KILL):
            wait_until(lambda moment=moment: len(ledger.started()) >= moment, 180, interval_s=0.01)
            victim = next(turns)
            victim.kill()
            victim.start(wait=False)
        wait_until(lambda: settled(client), 100, lambda: f"{places(client, QUEUE)} {crew[0].tail()}", interval_s=0.05)
        assert [worker.stop(60) for worker in crew] == [0] * WORKERS
        assert event_violations(client, Keys(), QUEUE) == []
        paths = paths_of(client, Keys(), QUEUE)
        written = client.xlen(Keys().queue(QUEUE).events)
    last = {path[0].task_id: path for path in paths.values()}
    assert last.keys() == fates.keys()
    ends = Counter(final_state(path) for path in last.values())
    ended, started = ledger.ended(), ledger.started()
    # The ledger's account: what was carried to its end, and how; what never started.
    by_ledger = Counter(ENDS[name.partition("-")[0]] for name in ended)
    by_ledger += Counter(ENDS[how] for name, how in fates.items() if name not in started)
    assert ends == by_ledger
    assert {name: final_state(path) for name, path in last.items()} == {name: ENDS[how] for name, how in fates.items()}
    assert {name for name in fates if name not in started} == {n for n, how in fates.items() if how in ("expired", "cancelled")}
    told = Counter(event.event for path in paths.values() for event in path)
    claims = sum(started.values())
    # A claim that a killed worker did not begin has no start.
    assert told["claimed"] >= claims
    figures(f"{tasks} tasks, {len(paths)} messages, {written} events, all paths legal: {dict(ends)}; {dict(told)}")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_every_return_of_a_graceful_stop_is_told(*, pool, full, own_server, ledger, make_publisher_app, make_worker, figures):
    rounds, tasks = (20, 6000) if full else (4, 1200)
    app = make_publisher_app(own_server.url())
    worker = make_worker(own_server.url(), pool=pool, concurrency=1 if pool == "solo" else CONCURRENCY)
    with app.connection_for_write() as connection:
        for number in range(tasks):
            app.send_task("life.fate", [f"success-{number}", "success"], task_id=str(number), connection=connection)
    with own_server.client() as client:
        for turn in range(rounds):
            worker.start()
            moment = tasks * (turn + 1) // (rounds + 2)
            wait_until(lambda moment=moment: len(ledger.started()) >= moment, 60, worker.tail, interval_s=0.002)
            assert worker.stop(60) == 0
            assert places(client, QUEUE)["messages_index"] == 0
            # Nothing is left to a visibility timeout: what the worker had claimed is PENDING again, and the events say so.
            assert event_violations(client, Keys(), QUEUE) == []
        worker.start()
        wait_until(lambda: settled(client), 100, lambda: f"{places(client, QUEUE)} {worker.tail()}")
        assert worker.stop(60) == 0
        paths = paths_of(client, Keys(), QUEUE)
        assert event_violations(client, Keys(), QUEUE) == []
    told = Counter((event.event, event.reason) for path in paths.values() for event in path)
    repeated = sum(ledger.started().values()) - len(ledger.started())
    returns = told["requeued", "handed_back"]
    figures(f"{rounds} stops, {tasks} tasks: lost {tasks - len(ledger.ended())}, repeated {repeated}, returns told {returns}")
    assert (len(ledger.ended()), repeated) == (tasks, 0)
    assert told == {
        ("published", None): tasks, ("claimed", None): tasks + returns, ("requeued", "handed_back"): returns,
        ("acked", None): tasks,
    }  # fmt: skip
    assert returns > 0


def test_backoff_is_the_policys_across_a_restart_of_worker_and_server(
    *, full, start_server, make_publisher_app, make_worker, figures
):
    # The long wait outlives the lease of a sweeper that was killed.
    policy = RetryPolicy("list", delays=(300, 700, 12_000, 500), jitter=0.2)
    queue = {"exchange": QUEUE, "routing_key": QUEUE, "queue_arguments": {"x-retry-policy": str(policy)}}
    settings = {**SETTINGS, "task_queues": {QUEUE: queue}}
    configured = {"event_log": True, "ack_policy": "nack_on_error"}
    server = start_server({"appendonly": "yes", "appendfsync": "always"})
    app = make_publisher_app(server.url(), configured, settings)
    worker = make_worker(server.url(), configured, settings)
    messages = 5
    for number in range(messages):
        app.send_task("life.fate", [f"failure-{number}", "failure"], task_id=str(number))
    worker.start()

    def waits(client):
        paths = paths_of(client, Keys(), QUEUE)
        return {
            tag: [(event, after) for event, after in itertools.pairwise(path) if event.event == "retried"]
            for tag, path in paths.items()
        }

    def retried(client):
        return [sum(event.event == "retried" for event in path) for path in paths_of(client, Keys(), QUEUE).values()]

    with server.client() as client:
        wait_until(lambda: retried(client) == [3] * messages, 30, worker.tail)
        assert {crp.message(app, tag, queue=QUEUE).state for tag in waits(client)} == {"RETRYABLE"}
    worker.kill()
    server.kill()
    server.start()
    worker.start()
    with server.client() as client:
        wait_until(lambda: client.zcard("dead:{celery}") == messages, 60, worker.tail)
        assert event_violations(client, Keys(), QUEUE) == []
        late = []
        for tag, pairs in waits(client).items():
            assert [event.delay for event, _ in pairs] == [policy.delay_ms(attempt, tag) for attempt in range(1, 5)]
            assert {after.event for _, after in pairs} == {"promoted"}
            late += [(after.ts - event.ts) / 1000 - event.delay for event, after in pairs]
    figures(f"{len(late)} waits, late by {min(late):.1f} to {max(late):.1f} ms")
    # The machine's load is not the policy's: only the full run takes it at its word.
    assert -1 <= min(late) <= max(late) <= (50 if full else 2000)
