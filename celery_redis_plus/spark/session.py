"""Starts Spark with what this pipeline needs, or says in one line what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_redis_plus.errors import SparkUnavailable
from celery_redis_plus.installation import install_command
from celery_redis_plus.spark.python_command import python_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark 4 runs on Java 17 and 21. Source: https://spark.apache.org/docs/latest/
LEAST_JAVA = 17

#: Where this package is imported from: Spark's Python processes have to find it as well.
PACKAGE_PARENT = Path(__file__).parents[2]

#: What a user without Java can do.
_WITHOUT = "Only `replay`, `--engine spark` and your own Spark sessions need it"

_CONFIG = {
    # Dates of partitions must not depend on the machine.
    "spark.sql.session.timeZone": "UTC",
    # What other readers of Parquet understand; Spark's default is a type of its own age.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Tables of a laptop's size: 200 shuffle partitions, the default, would cost more than the work.
    "spark.sql.shuffle.partitions": "4",
}


def check_packages(*, spark: bool = True) -> None:
    """Find the packages of the extra `spark`.

    Args:
        spark: also PySpark itself, without which events are read, aggregated, checked and reported as well.

    Raises:
        SparkUnavailable: one is missing; the message says what to install.
    """
    for module in (*(["pyspark"] if spark else []), "pyarrow", "pandas", "numpy", "matplotlib"):
        if find_spec(module) is None:
            raise SparkUnavailable(f"{module} is not installed: {install_command('spark')}")


def check_installed() -> None:
    """Find PySpark and Java.

    Raises:
        SparkUnavailable: one is missing or too old; the message says what to install, and what works without.
    """
    check_packages()
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise SparkUnavailable(f"Java is missing: install a Java {LEAST_JAVA} runtime, or point JAVA_HOME at one. {_WITHOUT}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    found = re.search(r'version "(\d+)', said)
    if found is not None and int(found[1]) < LEAST_JAVA:
        raise SparkUnavailable(f"Java {found[1]} at {java} is too old: Spark needs Java {LEAST_JAVA} or later. {_WITHOUT}")


def is_installed() -> bool:
    """Return whether Spark can be started here."""
    try:
        check_installed()
    except SparkUnavailable:
        return False
    return True


def session(name: str, *, master: str = "local[2]", config: dict[str, Any] | None = None) -> SparkSession:
    """Return a Spark session in which `celery_redis` and `celery_task` are known.

    Args:
        name: the application's name in Spark.
        master: where it runs; `local[2,4]` also retries failed tasks; '' where spark-submit has said it.
        config: Spark settings that go before ours.

    Raises:
        SparkUnavailable: PySpark or Java is missing.
    """
    check_installed()
    from pyspark.sql import SparkSession

    _set_environment(local=master.startswith("local"))
    settings = _CONFIG | (_LOCAL_CONFIG if master.startswith("local") else {}) | (config or {})
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    register(started)
    return started


def register(spark: SparkSession) -> None:
    """Make the formats `celery_redis` and `celery_task` known to a session that somebody else started.

    On this machine, Spark's Python processes become those of the driver's own Python, unless `PYSPARK_PYTHON` names another: the
    first one on the PATH may lack this package. The nodes of a cluster have to have it.
    """
    from celery_redis_plus.spark.sink import CeleryTaskSink
    from celery_redis_plus.spark.source import CeleryRedisSource

    # None with Spark Connect.
    context: Any = getattr(spark, "sparkContext", None)
    if context is not None and context.master.startswith("local"):
        # The JVM runs by now: what its processes get is asked of the context with each function and format.
        if "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = python_command()
        context.environment["PYTHONPATH"] = _with_package(context.environment.get("PYTHONPATH", ""))
    spark.dataSource.register(CeleryRedisSource)
    spark.dataSource.register(CeleryTaskSink)


def _set_environment(*, local: bool) -> None:
    """Tell Spark's Python processes which Python to use and where this package is."""
    os.environ.setdefault("PYSPARK_PYTHON", python_command() if local else sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Spark starts them with `python -m`, which would look for modules in the folder where the job was started first.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONPATH"] = _with_package(os.environ.get("PYTHONPATH", ""))
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _with_package(python_path: str) -> str:
    paths = [path for path in python_path.split(os.pathsep) if path]
    return python_path if str(PACKAGE_PARENT) in paths else os.pathsep.join([str(PACKAGE_PARENT), *paths])
