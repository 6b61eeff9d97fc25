"""What is run: one `Run` is one pytest process over a part of a suite."""

from __future__ import annotations

from dataclasses import dataclass

#: The parts of Celery's suite that show most in minutes: remote control, inspection, tasks, canvas.
CELERY_QUICK = (
    "test_inspect.py::*",
    "test_worker.py::test_pidbox_reset_after_repeated_control_errors",
    "test_worker.py::test_concurrency_auto_sizes_prefork_pool",
    "test_tasks.py::*",
    "test_canvas.py::*",
)
#: Of those, what spends its time waiting: left to the full run.
CELERY_SLOW = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One pytest process.

    Args:
        name: shown to the user; the part before a space is the suite.
        paths: files or folders in the unpacked source distribution.
        deadline_s: the process is ended after this time, and what had not finished counts as failed.
        ignore: files in `paths` that belong to another run.
        takes_over_redis_urls: the suite spells `redis://` in its files, or runs only if its environment does;
            then these connections are made with the transport under test.
        low_first: the suite expects priority 0 first, as kombu's redis transport has it.
        quick: patterns of the tests that `--quick` keeps; empty for all.
        slow: patterns of the tests that `--quick` leaves out of these.
    """

    name: str
    paths: tuple[str, ...]
    deadline_s: float
    ignore: tuple[str, ...] = ()
    takes_over_redis_urls: bool = False
    low_first: bool = False
    quick: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()

    @property
    def suite(self) -> str:
        """Name of the suite, which is the name of its distribution."""
        return self.name.partition(" ")[0]


RUNS = (
    Run(
        "kombu",
        paths=("t/integration/test_redis.py", "t/integration/test_redis_brpop_qos.py"),
        deadline_s=900,
        takes_over_redis_urls=True,
        low_first=True,
    ),
    Run(
        "celery",
        paths=("t/integration",),
        deadline_s=3600,
        ignore=("t/integration/test_connection_recovery.py",),
        quick=CELERY_QUICK,
        slow=CELERY_SLOW,
    ),
    # Runs only for a broker URL that starts with redis://, so it gets one.
    Run(
        "celery half-open",
        paths=("t/integration/test_connection_recovery.py",),
        deadline_s=300,
        takes_over_redis_urls=True,
    ),
)
