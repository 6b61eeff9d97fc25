"""The long forms of the pipeline's tests. They need Java, PySpark and /proc; `tox -e spark-chaos` runs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

# The fixture of the short forms.
from tests.spark.conftest import MISSING, spark
from tests.support.spark_jobs import Job

__all__ = ["spark"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("spark")
            item.add_marker(pytest.mark.timeout(7200))
            if MISSING:
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start a program: `start(sys.executable, "-m", "x", env={})`; what is left of it at the end is killed."""
    with ExitStack() as stack:
        count = 0

        def run(*command: str, **options: Any) -> Job:
            nonlocal count
            count += 1
            job = Job(command, tmp_path / f"job{count}.log", **options)
            stack.callback(job.end)
            return job

        yield run


@pytest.fixture
def start_job(start: Callable[..., Job]) -> Callable[..., Job]:
    """Start a job as the command line does: `start_job("aggregate", "--root", "x")`."""

    def run(*words: str, **options: Any) -> Job:
        return start(sys.executable, "-P", "-m", "celery_redis_plus", "spark", *words, **options)

    return run
