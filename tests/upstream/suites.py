"""What is run: a `Run` is a part of a suite with the way in which it meets our transport."""

from __future__ import annotations

from dataclasses import dataclass

#: The parts of Celery's suite that show most in minutes: remote control, inspection, tasks, canvas.
CELERY_QUICK = (
    "test_inspect.py::*",
    "test_worker.py::*",
    "test_tasks.py::*",
    "test_canvas.py::test_link_error::*",
    "test_canvas.py::test_chain::*",
    "test_canvas.py::test_chord::*",
    "test_canvas.py::test_group::*",
)
#: Of those, what mostly waits (to see that nothing more comes), and variations on one theme of canvas.
CELERY_SLOW = (
    "test_canvas.py::*call*back*",
    "test_canvas.py::*errback*",
    "test_canvas.py::*flag*",
    "test_canvas.py::*generator*",
    "test_canvas.py::*implicit*",
    "test_canvas.py::*large*",
    "test_canvas.py::*leak*",
    "test_canvas.py::*link_option*",
    "test_canvas.py::*nested*",
    "test_canvas.py::*parent_ids*",
    "test_canvas.py::*replace*",
    "test_canvas.py::*upgraded*",
    "test_canvas.py::test_ch*::*error*",
    "test_canvas.py::test_chain::test_chain_of_*",
    "test_canvas.py::test_chain::test_header_failure_*",
    "test_tasks.py::*::test_expired",
    "test_tasks.py::*::test_request_time_limits_*",
    "test_tasks.py::*::test_retry",
    "test_tasks.py::*::test_revoke_keeps_state_of_task_started_elsewhere",
    "test_tasks.py::*::test_revoked_by_headers_complex_canvas",
    "test_tasks.py::*::test_timeout",
    "test_tasks.py::test_apply_tasks::*",
    "test_tasks.py::test_signal_bound_method_receivers::*",
    "test_worker.py::test_django_*",
)

#: Their answer, which the worker's thread gives as it receives the task, is set back by the line after the publish.
CELERY_RACES = (
    "test_tasks.py::test_task_replacement::test_replaced_task_nesting_level_0",
    "test_tasks.py::test_task_replacement::test_replaced_task_nesting_level_1",
)


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a suite. Each of its files has a pytest process and a server of its own.

    In one process for all, tests see what earlier files left behind: subscriptions of the result backend, a "never call
    get() within a task" flag, queued work. Then 3 tests fail on any transport, kombu's own included.

    Args:
        name: shown to the user; the part before a space is the suite.
        paths: files in the unpacked source distribution; with `*`.
        deadline_s: a file's process is ended after this time, and what had not finished counts as failed.
        ignore: files in `paths` that belong to another run.
        takes_over_redis_urls: the suite spells `redis://` in its files, or runs only if its environment does;
            then these connections are made with the transport under test.
        low_first: the suite expects priority 0 first, as kombu's redis transport has it.
        quick: patterns of the tests that `--quick` keeps; empty for all.
        slow: patterns of the tests that `--quick` leaves out of these.
        races: patterns of tests that lose against a fast broker by chance, and have two more attempts.
    """

    name: str
    paths: tuple[str, ...]
    deadline_s: float
    ignore: tuple[str, ...] = ()
    takes_over_redis_urls: bool = False
    low_first: bool = False
    quick: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    races: tuple[str, ...] = ()

    @property
    def suite(self) -> str:
        """Name of the suite, which is the name of its distribution."""
        return self.name.partition(" ")[0]

    def has_quick(self, file: str) -> bool:
        """Tell whether `--quick` keeps any test of the file."""
        return not self.quick or any(pattern.startswith(f"{file}::") for pattern in self.quick)


RUNS = (
    Run(
        "kombu",
        paths=("test_redis.py", "test_redis_brpop_qos.py"),
        deadline_s=900,
        takes_over_redis_urls=True,
        low_first=True,
    ),
    Run(
        "celery",
        paths=("test_*.py",),
        deadline_s=3600,
        ignore=("test_connection_recovery.py",),
        quick=CELERY_QUICK,
        slow=CELERY_SLOW,
        races=CELERY_RACES,
    ),
    # Runs only for a broker URL that starts with redis://, so it gets one.
    Run(
        "celery half-open",
        paths=("test_connection_recovery.py",),
        deadline_s=300,
        takes_over_redis_urls=True,
    ),
)
