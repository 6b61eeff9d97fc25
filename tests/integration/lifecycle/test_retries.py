"""`retry_on`, `dead_on`, `ignore_on` and `snooze`: what follows an exception, by its class."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from celery.exceptions import Ignore
from kombu import Exchange, Queue

import celery_redis_plus as crp
from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter
from celery_redis_plus.cli.main import main
from celery_redis_plus.errors import InvalidArgument, OptionError, QueueFull
from celery_redis_plus.integration.retries import ERRORS
from celery_redis_plus.testing import running_worker
from tests.integration.lifecycle.app import KILL_VARIABLE
from tests.support.waiting import wait_until

#: What a task does in its tries -> how each of its messages ended, in the order of their numbers.
FATES = {
    "return": ["acked"],
    "connection, return": ["acked retry", "acked"],
    # Two retries at most, by the rule of the nearest class.
    "connection": ["acked retry", "acked retry", "dead_lettered rejected ConnectionRefusedError: no answer"],
    # The rule has no limit: the task's, which is Celery's, 3.
    "os": ["acked retry"] * 3 + ["dead_lettered rejected OSError: disk"],
    "refused, return": ["acked retry", "acked"],
    "refused silently": ["acked retry", "dead_lettered rejected RefusedError: slow down"],
    "timeout": ["acked retry", "dead_lettered rejected TimeoutError: late"],
    "connection, value": ["acked retry", "dead_lettered rejected ValueError: as asked"],
    # Neither named nor of a named class.
    "key": ["dead_lettered rejected KeyError: 'shop'"],
    "connection, gone": ["acked retry", "acked ignored"],
    "snooze, snooze, connection, snooze, connection, return": ["acked retry"] * 5 + ["acked"],
    "snooze": ["acked retry"] * 3 + ["dead_lettered rejected SnoozedTooOften"],
}
END = {"acked", "dead_lettered", "failed"}


def ends_of(paths):
    """Return how the messages of each task ended, in the order in which they were published."""
    found = {}
    for path in sorted(paths.values(), key=lambda path: path[0].ts):
        ended = [event for event in path if event.event in END]
        said = [" ".join(part for part in (event.event, event.reason, event.error) if part) for event in ended]
        found.setdefault(path[0].task_id, []).append(" then ".join(said))
    return found


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads", "gevent", pytest.param("eventlet", marks=pytest.mark.weekly)])
def test_an_exception_has_the_end_that_its_class_says(pool, life_app, life_worker, paths):
    if pool in {"gevent", "eventlet"}:
        pytest.importorskip(pool)
    worker, app = life_worker(pool=pool, concurrency=2), life_app()
    for steps in FATES:
        app.send_task("life.tries", [steps], task_id=steps)

    def is_as_expected():
        ends = ends_of(paths("celery"))
        return all(
            len(ends.get(steps, ())) == len(fates) and all(map(str.startswith, ends[steps], fates))
            for steps, fates in FATES.items()
        )

    wait_until(is_as_expected, 60, lambda: (ends_of(paths("celery")), worker.tail()))


@pytest.mark.parametrize("kind", ["topic", "fanout"])
def test_a_retry_comes_to_the_queue_alone_from_which_its_message_came(kind, app):
    shared = Exchange("shared", kind, durable=True)
    app.conf.task_queues = [Queue(name, shared, routing_key="all", durable=True) for name in ("one", "two")]
    tries = []

    @app.task(name="fails", bind=True, retry_on={ValueError: 0.01}, shared=False)
    def fails(self):
        tries.append(self.request.retries)
        if self.request.retries < 2:
            raise ValueError

    with running_worker(app, concurrency=1, pool="threads"):
        fails.apply_async(exchange="shared", exchange_type=kind, routing_key="all")
        wait_until(lambda: len(tries) >= 6)
    assert sorted(tries) == [0, 0, 1, 1, 2, 2]


def test_a_queue_decides_by_the_class_of_the_exception(app):
    crp.configure_app(app, ack_policy="nack_on_error")
    policy = "constant first=600s; ValueError: none; KeyError: list delays=1,600000"
    app.conf.task_queues = [Queue("celery", queue_arguments={"x-retry-policy": policy})]
    tries = []

    @app.task(name="raises", shared=False)
    def raises(kind):
        tries.append(kind)
        raise {"value": ValueError, "key": KeyError, "os": OSError}[kind]("as asked")

    for kind in ("value", "key", "os"):
        raises.delay(kind)
    with running_worker(app, concurrency=1, pool="threads"), app.connection_for_read() as connection:
        channel = connection.channel()
        wait_until(
            lambda: (found := channel.queue_sizes("celery")).delayed == 2 and not found.ready + found.unacked and len(tries) == 4
        )
        assert sorted(tries) == ["key", "key", "os", "value"]


def dead_letters(broker_url):
    with BrokerAdmin(broker_url) as admin:
        return [letter for _, page in admin.search_dead_letters("celery", DeadLetterFilter()).pages() for letter in page]


def errors_of(letter):
    """Return the errors that a header has, without their times."""
    return [error.partition(" ")[2] for error in letter.headers[ERRORS]]


def test_a_dead_letter_has_the_errors_of_all_its_tries(life_app, life_worker, broker_url):
    worker, app = life_worker(pool="threads", concurrency=1), life_app()
    app.send_task("life.tries", ["connection, os, value"])
    (letter,) = wait_until(lambda: dead_letters(broker_url), 30, worker.tail)
    assert errors_of(letter) == ["ConnectionRefusedError: no answer", "OSError: disk"]
    assert letter.failure.text == "ValueError: as asked"


def test_of_many_errors_a_dead_letter_has_the_first_and_the_latest(app, broker_url):
    @app.task(name="fails", retry_on={OSError: "constant first=1 limit=11"}, shared=False)
    def fails():
        raise OSError(f"try {fails.request.retries}")

    fails.delay()
    with running_worker(app):
        (letter,) = wait_until(lambda: dead_letters(broker_url), 30)
    assert errors_of(letter) == [f"OSError: try {number}" for number in (0, *range(2, 11))]


def test_dead_letters_are_counted_and_replayed_by_exception_and_release(life_app, life_worker, broker_url, capsys):
    worker, app = life_worker(f"{broker_url}?release=2026.11", pool="threads", concurrency=1), life_app()
    for steps in ("value", "key", "value"):
        app.send_task("life.tries", [steps])

    def run(action, *arguments):
        assert main(["dead-letters", action, "--url", broker_url, *arguments]) == 0
        return capsys.readouterr().out

    with BrokerAdmin(broker_url) as admin:
        wait_until(lambda: admin.dead_letters.count("celery") == 3, 30, worker.tail)
    groups = [json.loads(line) for line in run("groups", "celery", "--json").splitlines()]
    assert [(group["count"], group["task"], group["error"], group["example"]) for group in groups] == [
        (2, "life.tries", "ValueError", "ValueError: as asked"),
        (1, "life.tries", "KeyError", "KeyError: 'shop'"),
    ]
    worker.ask_to_stop()
    with BrokerAdmin(broker_url) as admin:
        assert {letter.failure.release for letter in admin.dead_letters.all("celery")} == {"2026.11"}
    for selected, count in ((("--release", "2026.1?"), 3), (("--release", "2026.10"), 0)):
        told = run("replay", "celery", *selected, "--dry-run")
        assert told == f"{count} dead letter(s) of queue 'celery' would be replayed\n"
    assert (
        run("replay", "celery", "--error", "ValueError", "--release", "2026.11")
        == "2 dead letter(s) of queue 'celery' are back to work\n"
    )


#: Whose process is killed behind the publish of the first retry, before the ack of the message that it follows.
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("steps", "headers"),
    [
        ("connection, return", {}),
        ("snooze, return", {}),
        ("connection, return", {"x-deduplication-id": "one", "x-deduplication-scope": "until-started"}),
        ("connection, connection, value", {}),
    ],
)
def test_a_worker_that_dies_between_a_retry_and_its_ack_leaves_one_retry(steps, headers, life_app, life_worker, paths, tmp_path):
    mark = tmp_path / "killed"
    first = life_worker(pool="prefork", concurrency=1, env={KILL_VARIABLE: str(mark)})
    app = life_app()
    app.send_task("life.tries", [steps], task_id="t", headers=headers)
    wait_until(mark.exists, 30, first.tail)
    second = life_worker(pool="prefork", concurrency=1)

    def is_done():
        ends = ends_of(paths("celery")).get("t", [])
        return len(ends) == len(steps.split(", ")) and all(ends)

    wait_until(is_done, 60, lambda: (ends_of(paths("celery")), second.tail()))
    retries = sorted(path[0].retries for path in paths("celery").values())
    assert retries == ([0, 0] if "snooze" in steps else list(range(len(steps.split(", ")))))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"retry_on": (ValueError,)}, r"option retry_on of task 'bad' is .*; allowed: a dict"),
        (
            {"retry_on": {ValueError: "often"}},
            r"retry_on of task 'bad', ValueError: kind 'often'; allowed: none, constant",
        ),
        (
            {"retry_on": {ValueError: "constant first=1w"}},
            r"ValueError: time '1w'; allowed: a number of ms, or",
        ),
        ({"retry_on": {ValueError: "constant first=1s limit=x"}}, r"ValueError: limit=x; allowed: a whole number"),
        ({"retry_on": {ValueError: -1}}, r"ValueError: -1; allowed: a retry policy, a number of seconds"),
        ({"retry_on": {"ValueError": 1}}, r"option retry_on of task 'bad' has 'ValueError'; allowed: classes of exceptions"),
        ({"ignore_on": Ignore}, r"option ignore_on of task 'bad' has Celery's Ignore; allowed: other exceptions"),
        ({"dead_on": ValueError, "ack_policy": "ack_after"}, r"option dead_on of task 'bad' with ack_policy 'ack_after'"),
    ],
)
def test_an_option_that_is_not_allowed_is_an_error_that_names_it(options, error, app):
    crp.configure_app(app).finalize()
    with pytest.raises(OptionError, match=error):
        app.task(name="bad", shared=False, **options)(ends_of)


def test_an_eager_task_is_retried_by_its_exception_and_a_called_one_raises_it(app):
    crp.configure_app(app)
    seen = []

    @app.task(name="eager", bind=True, shared=False, retry_on={ConnectionError: "constant first=1ms limit=2"})
    def eager(self):
        seen.append(self.request.retries)
        raise ConnectionError("down")

    assert isinstance(eager.apply().result, ConnectionError)
    assert seen == [0, 1, 2]
    with pytest.raises(ConnectionError):
        eager()
    with pytest.raises(InvalidArgument, match="outside a task of a worker"):
        crp.snooze(1)
    with pytest.raises(InvalidArgument, match="argument 'delay' of snooze is -1; allowed: seconds"):
        crp.snooze(-1)


class SlowError(Exception):
    after = 0.001


def test_a_rule_by_the_exception_has_the_limit_of_the_policy_that_stands_in(app):
    crp.configure_app(app)
    seen, rule = [], crp.from_error("after", otherwise="constant first=1ms limit=1")

    @app.task(name="eager", bind=True, shared=False, retry_on={SlowError: rule})
    def eager(self):
        seen.append(self.request.retries)
        raise SlowError

    assert isinstance(eager.apply().result, SlowError)
    assert seen == [0, 1]


def test_a_task_that_was_acked_early_fails_by_the_error_of_its_retry(app):
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    app.conf.task_queues = [Queue("short", durable=True, queue_arguments=limits)]
    app.conf.task_default_queue = "short"

    @app.task(name="early", shared=False, ack_policy="ack_first", retry_on={KeyError: 1})
    def early():
        app.send_task("waits", countdown=600)
        raise KeyError

    result = early.delay()
    with running_worker(app), pytest.raises(QueueFull):
        result.get(timeout=30)


def test_tasks_have_their_options_however_they_are_made(app):
    """Before and after `configure_app`, shared, by a class, and in an app that has its tasks already."""
    runs = []

    def make(name):
        @app.task(name=name, bind=True, shared=False, retry_on={KeyError: "constant first=1ms limit=1"})
        def task(self):
            runs.append((name, self.request.retries))
            raise KeyError(name)

        return task

    made = [make("before")]
    crp.configure_app(app)
    made.append(make("lazy"))
    app.finalize()
    made.append(make("late"))
    crp.configure_app(app)

    class OfClass(app.Task):
        name = "class"
        retry_on: ClassVar = {KeyError: "constant first=1ms limit=1"}

        def run(self):
            runs.append(("class", self.request.retries))
            raise KeyError("class")

    made.append(app.register_task(OfClass()))
    for task in made:
        task.apply()
    assert runs == [(name, retries) for name in ("before", "lazy", "late", "class") for retries in (0, 1)]


def test_a_retry_that_a_full_queue_refuses_is_tried_again(life_app, life_worker, paths):
    app = life_app()
    with app.connection_for_write() as connection:
        full = {"x-max-pending": 2, "x-overflow": "reject-publish-dlx"}
        connection.channel().queue_declare("celery", durable=True, arguments=full)
    waiting = app.send_task("life.tries", ["return"], countdown=600)
    app.send_task("life.tries", ["connection, return"], task_id="t")
    worker = life_worker(pool="threads", concurrency=1)

    def said():
        return [event.event for path in paths("celery").values() if path[0].task_id == "t" for event in path]

    wait_until(lambda: {"requeued", "retried"} & set(said()), 30, lambda: (said(), worker.tail()))
    assert crp.cancel(app, waiting.id)
    wait_until(lambda: said().count("acked") == 2, 30, lambda: (said(), worker.tail()))
