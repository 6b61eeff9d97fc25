"""`unique`: of tasks with the same arguments the broker has one."""

from __future__ import annotations

import threading

import pytest
from celery import chain, chord

import celery_redis_plus as crp
from celery_redis_plus.errors import InvalidArgument, OptionError
from celery_redis_plus.testing import running_worker
from tests.support.waiting import wait_until


@pytest.fixture
def shop(app):
    """A configured app with a task for each scope; `gates[name]` lets the tasks of that name end."""
    crp.configure_app(app)
    app.runs, app.gates = [], {}

    def make(name, unique, **options):
        app.gates[name] = threading.Event()

        @app.task(name=name, bind=True, shared=False, unique=unique, **options)
        def task(self, user, amount=0, fails=0):
            app.runs.append((name, user, amount, self.request.retries))
            assert app.gates[name].wait(30)
            if self.request.retries < fails:
                raise ConnectionError("down")

        return task

    app.make = make
    return app


def test_one_waits_however_its_arguments_are_written(shop):
    refresh = shop.make("refresh", "while-queued")
    first = refresh.delay(7)
    assert first.is_duplicate is False
    for again in (refresh.delay(7), refresh.delay(user=7), refresh.apply_async((7, 0), countdown=60)):
        assert (again.id, again.is_duplicate) == (first.id, True)
    assert refresh.delay(7, 1).is_duplicate is False
    assert refresh.delay("7").is_duplicate is False
    # It claims no second task while one runs.
    with running_worker(shop, concurrency=1, pool="threads", prefetch_multiplier=1):
        wait_until(lambda: shop.runs == [("refresh", 7, 0, 0)], 30, lambda: shop.runs)
        # The first one runs, so another may wait.
        assert refresh.delay(7).is_duplicate is False
        assert refresh.delay(7).is_duplicate is True
        shop.gates["refresh"].set()
        wait_until(lambda: len(shop.runs) == 4)


@pytest.mark.parametrize(("unique", "while_it_runs", "while_its_retry_waits"), [
    ("while-queued", False, True), ("until-start", False, False), ("until-success", True, True), ("window 1h", True, True),
])  # fmt: skip
def test_each_scope_ends_where_its_name_says(unique, while_it_runs, while_its_retry_waits, shop):
    sync = shop.make("sync", unique, unique_by=["user"], retry_on={ConnectionError: 600})
    assert sync.delay("ada", fails=1).is_duplicate is False
    with running_worker(shop, concurrency=2, pool="threads"), shop.connection_for_read() as connection:
        wait_until(lambda: len(shop.runs) == 1)
        assert sync.delay("ada").is_duplicate is while_it_runs
        wait_until(lambda: while_it_runs or len(shop.runs) == 2)
        shop.gates["sync"].set()
        channel = connection.channel()
        wait_until(lambda: (sizes := channel.queue_sizes("celery")).delayed == 1 and not sizes.unacked)
        assert sync.delay("ada").is_duplicate is while_its_retry_waits


def test_one_that_has_ended_lets_the_next_one_come(shop):
    sync = shop.make("sync", "until-success")
    shop.gates["sync"].set()
    with running_worker(shop, concurrency=1, pool="threads"):
        assert sync.delay("ada").get(timeout=30) is None
        wait_until(lambda: not sync.delay("ada").is_duplicate)


def test_one_is_chosen_by_some_arguments_or_by_a_function(shop):
    by_name = shop.make("by_name", "until-success", unique_by=["user"])
    by_function = shop.make("by_function", "until-success", unique_by=lambda user, amount: user.lower())
    for task in (by_name, by_function):
        assert [task.delay("ada", amount).is_duplicate for amount in (1, 2)] == [False, True]
    assert by_function.delay("ADA", 3).is_duplicate is True
    assert by_name.delay("ADA").is_duplicate is False
    with pytest.raises(InvalidArgument, match=r"unique task 'odd' with arguments that are no JSON .*option unique_by"):
        shop.make("odd", "until-success").apply_async((object(),), serializer="pickle")


def test_fifty_publishers_at_once_send_one_and_a_dead_letter_frees_its_place(shop):
    task = shop.make("once", "until-success")
    start, outcomes = threading.Barrier(50), []

    def publish():
        start.wait(30)
        outcomes.append(task.delay("ada"))

    threads = [threading.Thread(target=publish) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({result.id for result in outcomes}) == 1
    assert sum(not result.is_duplicate for result in outcomes) == 1
    with shop.connection_for_read() as connection:
        assert connection.channel().queue_sizes("celery").ready == 1
    crp.cancel(shop, outcomes[0].id, dead_letter=True)
    assert task.delay("ada").is_duplicate is False


def test_members_of_a_chord_are_all_sent(shop):
    member = shop.make("member", "until-success")
    shop.gates["member"].set()

    @shop.task(name="total", shared=False)
    def total(results):
        return len(results)

    with running_worker(shop, concurrency=1, pool="threads"):
        assert chord([member.s("ada"), member.s("ada")])(total.s()).get(timeout=30) == 2


def test_the_last_of_a_chain_is_sent_though_another_one_waits(shop):
    last = shop.make("last", "while-queued", unique_by=["user"])
    shop.gates["last"].set()

    @shop.task(name="first", shared=False)
    def first():
        return None

    assert last.apply_async(("ada",), countdown=600).is_duplicate is False
    with running_worker(shop, concurrency=1, pool="threads"):
        assert chain(first.si(), last.si("ada")).apply_async().get(timeout=30) is None


@pytest.mark.parametrize("how", ["chord", "replace"])
@pytest.mark.parametrize("options", [{"unique": "while-queued"}, {"unique": None, "debounce": 600}])
def test_a_task_whose_result_is_awaited_is_sent_though_another_one_waits(shop, how, options):
    """The body of a chord, and what takes the place of a running task, have ids that others know."""
    total = shop.make("total", unique_by=["user"], **options)
    shop.gates["total"].set()

    @shop.task(name="part", bind=True, shared=False)
    def part(self):
        if how == "replace":
            raise self.replace(total.si("ada"))

    waiting = total.delay("ada") if "debounce" in options else total.apply_async(("ada",), countdown=600)
    assert waiting.is_duplicate is False
    with running_worker(shop, concurrency=2, pool="threads"):
        result = chord([part.si(), part.si()])(total.si("ada")) if how == "chord" else part.delay()
        assert result.get(timeout=30) is None
    assert len(shop.runs) == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"unique": "always"},
            "option unique of task 'bad' is 'always'; allowed: while-queued, until-start, until-success, and a",
        ),
        ({"unique": "window"}, "option unique of task 'bad' is 'window'"),
        ({"unique": "window 2y"}, "option unique of task 'bad' is 'window 2y'"),
        ({"unique": 5}, "option unique of task 'bad' is 5"),
        (
            {"unique": "until-start", "unique_by": "user"},
            "option unique_by of task 'bad' is 'user'; allowed: names of its arguments",
        ),
        ({"unique": "until-start", "unique_by": ["usr"]}, "option unique_by of task 'bad' has 'usr'; allowed: user, amount"),
    ],
)
def test_an_option_that_is_not_allowed_names_itself(options, error, shop):
    shop.finalize()
    with pytest.raises(OptionError, match=error):
        shop.task(name="bad", shared=False, **options)(_bad)


def _bad(user, amount=0):
    del user, amount


def test_tables_are_the_same_whatever_the_order_of_their_keys(app):
    crp.configure_app(app)

    @app.task(name="table", shared=False, unique="while-queued")
    def table(values):
        """Nothing is left to do."""

    assert table.delay({"a": 1, "b": 2}).id == table.delay({"b": 2, "a": 1}).id
