"""One Spark session for all tests here; without PySpark or Java they are skipped, and say why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.s3 import S3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
#: Set by CI: a test that is skipped for want of Spark fails instead.
REQUIRED = "CRP_REQUIRE_SPARK"


def missing() -> str:
    """Return what Spark needs and is not here; '' if nothing."""
    from celery_redis_plus.errors import SparkUnavailable
    from celery_redis_plus.spark.session import check_installed

    try:
        check_installed()
    except SparkUnavailable as error:
        return str(error)
    return ""


# Of the Java processes that tests start, and of those that only begin these.
os.environ.setdefault("SPARK_CONF_DIR", str(HERE / "conf"))
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

MISSING = missing()
if MISSING and os.environ.get(REQUIRED):
    raise pytest.UsageError(f"{REQUIRED} is set, and Spark cannot run: {MISSING}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(f"{HERE}/"):
            item.add_marker("spark")
            # Java on a machine that has other work takes its time; a test that hangs still ends.
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that retries failed tasks, small enough for tests."""
    from celery_redis_plus.spark.session import session

    if MISSING:
        pytest.skip(MISSING)
    folder = tmp_path_factory.mktemp("spark")
    started = session(
        "tests",
        master="local[2,4]",
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            # Compiling costs more than running on a few thousand rows: Java's second compiler, Spark's code generator and its
            # second plan after each stage are off.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.streaming.minBatchesToRetain": "2",
            # A failing task prints 60 lines of Java for each attempt.
            "spark.log.level": "OFF",
        },
    )
    yield started
    started.stop()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A server of S3's interface, which this process' environment names."""
    server = S3()
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    yield server
    server.stop()


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL of a place that is empty."""
    if request.param == "file":
        return f"file://{tmp_path}/lake/celery"
    found: S3 = request.getfixturevalue("s3")
    return found.url


@pytest.fixture
def read(spark: SparkSession, broker_url: str) -> Any:
    """Read a batch: `read(startingOffsets="latest")`."""

    def frame(**options: Any) -> Any:
        return spark.read.format("celery_redis").options(url=broker_url, **options).load()

    return frame
