"""The tables in SQL: the views that come with this package, and DuckDB with tables and views. No Java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from celery_redis_plus.errors import InvalidArgument, SparkUnavailable
from celery_redis_plus.events import FAILED_DELIVERY
from celery_redis_plus.installation import install_command
from celery_redis_plus.spark.layers import EVENTS, LAYOUTS
from celery_redis_plus.spark.manifest import CHECKS, TABLES
from celery_redis_plus.spark.roots import folder_of
from celery_redis_plus.spark.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from celery_redis_plus.spark.storage import Storage

#: The views, in an order in which each may use those before it. The files have a text each, which Spark and DuckDB understand.
VIEWS = ("attempts", "deaths", "slo", "hourly", "workflow", "deploys")
#: A message has failed that is `MOVED` for another reason than a newer one: it is a dead letter in another queue.
_HAS_FAILED = "(state IN ('FAILED', 'DEAD') OR (state = 'MOVED' AND reason <> 'replaced'))"
#: An attempt has failed, by what ended it. What a worker held is moved only to a dead-letter exchange.
_ATTEMPT_FAILED = f"(ended_by IN ('rejected', 'failed', 'moved') OR reason IN {('failure', 'retry', *FAILED_DELIVERY)})"
#: Functions that the views use, in which the dialects differ. A server's clock may have gone back, and Spark's session may be in
#: a zone whose hours begin at half past.
_DUCKDB_FUNCTIONS = (
    (
        "CREATE MACRO seconds_between(begin_at, end_at) AS "
        "CASE WHEN end_at < begin_at THEN 0e0 ELSE (epoch_us(end_at) - epoch_us(begin_at)) / 1e6 END"
    ),
    "CREATE MACRO hour_of(moment) AS date_trunc('hour', moment)",
    f"CREATE MACRO has_failed(state, reason) AS {_HAS_FAILED}",
    f"CREATE MACRO attempt_failed(ended_by, reason) AS {_ATTEMPT_FAILED}",
)
_SPARK_FUNCTIONS = (
    (
        "CREATE OR REPLACE TEMPORARY FUNCTION seconds_between(begin_at TIMESTAMP, end_at TIMESTAMP) RETURNS DOUBLE "
        "RETURN CASE WHEN end_at < begin_at THEN 0e0 ELSE (unix_micros(end_at) - unix_micros(begin_at)) / 1e6 END"
    ),
    (
        "CREATE OR REPLACE TEMPORARY FUNCTION hour_of(moment TIMESTAMP) RETURNS TIMESTAMP "
        "RETURN timestamp_seconds(unix_seconds(moment) - pmod(unix_seconds(moment), 3600))"
    ),
    f"CREATE OR REPLACE TEMPORARY FUNCTION has_failed(state STRING, reason STRING) RETURNS BOOLEAN RETURN {_HAS_FAILED}",
    (
        "CREATE OR REPLACE TEMPORARY FUNCTION attempt_failed(ended_by STRING, reason STRING) RETURNS BOOLEAN "
        f"RETURN {_ATTEMPT_FAILED}"
    ),
)


#: Spark's limits of a recursive view: 100 levels and a million rows. A task that starts itself again is a level each time.
_RECURSION_LIMITS = ("spark.sql.cteRecursionLevelLimit", "spark.sql.cteRecursionRowLimit")


def text(view: str) -> str:
    """Return the SQL of a view."""
    return Path(__file__).with_name("sql").joinpath(f"{view}.sql").read_text(encoding="utf-8")


def connected(snapshot: Snapshot) -> Any:
    """Return a DuckDB connection that has the tables, `losses`, `checks` (where there was one) and the views.

    Raises:
        SparkUnavailable: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise SparkUnavailable(f"duckdb is not installed: {install_command('spark')}") from None
    # No extension is fetched from elsewhere.
    config: dict[str, Any] = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    connection = duckdb.connect(config=config)
    connection.execute("SET TimeZone = 'UTC'")
    for table in (EVENTS, *TABLES):
        connection.register(table, snapshot.dataset(table) or LAYOUTS[table].schema.empty_table())
    connection.register("losses", snapshot.losses())
    if (checks := snapshot.checks()) is not None:
        connection.register(CHECKS.partition(".")[0], checks)
    for function in _DUCKDB_FUNCTIONS:
        connection.execute(function)
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view} AS {text(view)}")
    return connection


def query(root: str | Path | Storage, sql: str) -> pa.Table:
    """Return the rows of a query over tables and views.

    Args:
        root: the folder of tables, or their URL.
        sql: in DuckDB's dialect.

    Raises:
        InvalidArgument: the query cannot be understood.
        SparkUnavailable: DuckDB is not installed.
        TablesUnusable: there are no tables.
    """
    return rows_of(connected(Snapshot(root)), sql)


def rows_of(connection: Any, sql: str) -> pa.Table:
    """Return the rows of a query; errors as of `query`."""
    import duckdb

    try:
        found = connection.sql(sql)
        # A statement such as COPY has no rows.
        return pa.table({}) if found is None else found.to_arrow_table()
    except duckdb.Error as error:
        raise InvalidArgument(f"{sql!r}: {str(error).partition(chr(10))[0]}") from None


def register_views(spark: SparkSession, root: str | Path) -> None:
    """Make the tables and the views known to a Spark session, as temporary views.

    Args:
        spark: the session.
        root: the folder of tables.

    Raises:
        InvalidArgument: `root` is a URL.
        TablesUnusable: there are no tables.
    """
    from celery_redis_plus.spark import tables
    from celery_redis_plus.spark.roots import NO_JAVA_READER

    folder = folder_of(root, NO_JAVA_READER)
    for table in (EVENTS, *TABLES, "losses"):
        tables.read(spark, folder, table).createOrReplaceTempView(table)
    for limit in _RECURSION_LIMITS:
        spark.conf.set(limit, -1)
    for function in _SPARK_FUNCTIONS:
        spark.sql(function)
    for view in VIEWS:
        spark.sql(text(view)).createOrReplaceTempView(view)
